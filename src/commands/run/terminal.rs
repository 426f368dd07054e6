//! A person who reads along: the streams of the program as they come, and what it shows.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressStyle};
use mcp_forge_ports::driving::RunObserver;
use mcp_forge_ports::vocabulary::{OutputBlock, OutputStream, Picture, RunEvent};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use super::screen::Screen;
use crate::commands::pictures::Pictures;
use crate::commands::standard_output_is_open;

pub(super) struct Terminal {
    pub(super) spinner: ProgressBar,
    pub(super) screen: Arc<Screen>,
    pub(super) cancel: CancellationToken,
    /// Why the output could not be passed on; there is nothing to go on for then.
    pub(super) unwritten: Arc<OnceLock<io::Error>>,
    pub(super) pictures: Arc<Pictures>,
}

#[async_trait]
impl RunObserver for Terminal {
    async fn observe(&self, event: RunEvent) {
        match event {
            RunEvent::Queued { position } => {
                self.spinner
                    .set_message(format!("waiting, number {position}"));
            }
            RunEvent::Running => self.spinner.set_message("running"),
            RunEvent::Output { stream, bytes } => {
                self.write(stream, &self.screen.pass(stream, &bytes)).await;
            }
            RunEvent::Block(block) => match block {
                OutputBlock::Message { text } => self.show(OutputStream::Stderr, &text).await,
                OutputBlock::Warning { text, call } => {
                    let of = call.map(|call| format!(" in {call} "));
                    let text = format!("Warning{}: {text}", of.unwrap_or_default());
                    self.show(OutputStream::Stderr, &text).await;
                }
                OutputBlock::Html {
                    text: Some(text), ..
                }
                | OutputBlock::Json {
                    text: Some(text), ..
                }
                | OutputBlock::Text { text } => self.show(OutputStream::Stdout, &text).await,
                OutputBlock::Image { picture, text } => {
                    self.show_picture(picture).await;
                    // What the runner notes of it: that it is smaller than it was meant to be, say.
                    let notes = text.iter().flat_map(|text| text.lines().skip(1));
                    for note in notes.filter(|line| line.starts_with('[')) {
                        let told = format!("mcp-forge: picture {note}");
                        self.show(OutputStream::Stderr, &told).await;
                    }
                }
                // The value and the exception come at the end.
                _ => {}
            },
            _ => {}
        }
    }
}

impl Terminal {
    /// Shows lines that the program did not write itself.
    async fn show(&self, stream: OutputStream, text: &str) {
        self.write(stream, &self.screen.lines(stream, text)).await;
    }

    async fn write(&self, stream: OutputStream, bytes: &[u8]) {
        if self.unwritten.get().is_some() {
            return;
        }
        self.spinner.finish_and_clear();
        let written = match stream {
            OutputStream::Stdout => match standard_output_is_open() {
                Ok(()) => write(tokio::io::stdout(), bytes).await,
                Err(closed) => Err(closed),
            },
            OutputStream::Stderr => write(tokio::io::stderr(), bytes).await,
        };
        self.check(written);
    }

    async fn show_picture(&self, picture: Picture) {
        if self.unwritten.get().is_some() {
            return;
        }
        self.spinner.finish_and_clear();
        if self.pictures.are_drawn() {
            let start = self.screen.start_line(OutputStream::Stdout);
            self.write(OutputStream::Stdout, &start).await;
        }
        self.check(self.pictures.take(picture).await);
    }

    fn check(&self, written: io::Result<()>) {
        if let Err(error) = written {
            let _ = self.unwritten.set(error);
            self.cancel.cancel();
        }
    }
}

async fn write(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// A spinner while nothing is shown yet, on a terminal only.
pub(super) fn spinner() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner()
        .with_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        )
        .with_message("starting");
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
