//! The pictures of a program that a person runs: drawn in a terminal, saved in a directory, or
//! told of. They are hostile; nothing of them but base64 and sixels reaches the terminal.

mod directory;
mod protocol;
mod sixel;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use mcp_forge_ports::vocabulary::Picture;
use tokio_util::task::TaskTracker;

use self::directory::Directory;
use self::protocol::Protocol;
use super::{say, standard_output_is_open};
use crate::cli::{Plots, Run};

/// What is done with the pictures of one run, and what was.
pub(super) struct Pictures {
    directory: Option<Directory>,
    protocol: Option<Protocol>,
    /// A person reads along; in JSON everything is told already.
    tells: bool,
    /// Those that were neither drawn nor saved are told of.
    hints: bool,
    taken: Mutex<Taken>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Taken {
    /// Where each one is; nowhere after a failure.
    saved: Vec<Option<PathBuf>>,
    unseen: usize,
}

impl Pictures {
    /// # Errors
    ///
    /// When nothing can be saved in the directory; it is better told before the run than after it.
    pub(super) fn new(arguments: &Run) -> anyhow::Result<Arc<Self>> {
        let directory = arguments.save_plots.as_deref();
        let directory = directory
            .map(|path| {
                Directory::open(path).with_context(|| {
                    format!("cannot save plots in {} (--save-plots)", path.display())
                })
            })
            .transpose()?;
        let protocol = match arguments.plots {
            _ if arguments.json => None,
            Plots::Auto if io::stdout().is_terminal() => {
                Protocol::of_terminal(|name| std::env::var(name).ok())
            }
            Plots::Auto | Plots::None => None,
            Plots::Kitty => Some(Protocol::Kitty),
            Plots::Iterm2 => Some(Protocol::Iterm2),
            Plots::Sixel => Some(Protocol::Sixel),
        };
        Ok(Arc::new(Self {
            hints: !arguments.json && directory.is_none() && arguments.plots != Plots::None,
            tells: !arguments.json,
            directory,
            protocol,
            taken: Mutex::default(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Takes the next one. Who does not wait leaves nothing half drawn or half saved.
    ///
    /// # Errors
    ///
    /// When standard output cannot be written. What cannot be saved is told, and the run goes on.
    pub(super) async fn take(self: &Arc<Self>, picture: Picture) -> io::Result<()> {
        let pictures = Arc::clone(self);
        let task = self
            .tasks
            .spawn_blocking(move || pictures.draw_and_save(&picture));
        task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    fn draw_and_save(&self, picture: &Picture) -> io::Result<()> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = match self.protocol.and_then(|protocol| protocol.encode(picture)) {
            Some(drawing) => draw(&drawing).map(|()| true),
            None => Ok(false),
        };
        if let Some(directory) = &self.directory {
            let saved = directory.save(taken.saved.len() + 1, picture);
            match &saved {
                Ok(path) if self.tells => say(&format!("mcp-forge: saved {}", path.display())),
                Ok(_) => {}
                Err(error) => say(&format!("mcp-forge: cannot save the picture: {error:#}")),
            }
            taken.saved.push(saved.ok());
        }
        if !*drawn.as_ref().unwrap_or(&true) {
            taken.unseen += 1;
        }
        drawn.map(|_| ())
    }

    /// Waits until all are drawn and saved, also those that nobody waited for.
    pub(super) async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Where each picture was saved.
    pub(super) fn saved(&self) -> Vec<Option<PathBuf>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.saved.clone()
    }

    /// Tells how to get those that nobody has seen.
    pub(super) fn hint(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let what = match taken.unseen {
            _ if !self.hints => return,
            0 => return,
            1 => "1 picture is".to_owned(),
            more => format!("{more} pictures are"),
        };
        say(&format!(
            "mcp-forge: {what} not shown here; --save-plots DIR saves them as files"
        ));
    }
}

fn draw(drawing: &[u8]) -> io::Result<()> {
    standard_output_is_open()?;
    let mut out = io::stdout().lock();
    out.write_all(drawing)?;
    out.write_all(b"\n")?;
    out.flush()
}
