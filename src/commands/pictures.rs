//! The pictures of a program that a person runs: drawn in a terminal, saved in a directory, or
//! told of. They are hostile; nothing of them but base64 and sixels reaches the terminal.

mod directory;
mod protocol;
mod sixel;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use mcp_forge_ports::vocabulary::Picture;
use tokio_util::task::TaskTracker;

use self::directory::Directory;
use self::protocol::Protocol;
use super::{say, standard_output_is_open};
use crate::cli::{Plots, Run};

/// How long a picture is waited for whose run is over.
const PATIENCE: Duration = Duration::from_secs(2);

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
    /// Where each one is; nowhere until it is saved.
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
            .spawn_blocking(move || pictures.save_and_draw(&picture));
        task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    fn save_and_draw(&self, picture: &Picture) -> io::Result<()> {
        if let Some(directory) = &self.directory {
            let number = {
                let mut taken = self.taken();
                taken.saved.push(None);
                taken.saved.len()
            };
            match directory.save(number, picture) {
                Ok(path) => {
                    if self.tells {
                        say(&format!("mcp-forge: saved {}", path.display()));
                    }
                    self.taken().saved[number - 1] = Some(path);
                }
                Err(error) => say(&format!("mcp-forge: cannot save the picture: {error:#}")),
            }
        }
        match self.protocol.and_then(|protocol| protocol.encode(picture)) {
            Some(drawing) => draw(&drawing),
            None => {
                self.taken().unseen += 1;
                Ok(())
            }
        }
    }

    /// Never held while a file or standard output is written, which may take for ever.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for those that nobody waited for, since the run was stopped; not for ever, since a
    /// terminal or a pager may have stopped reading.
    pub(super) async fn settle(&self) {
        self.tasks.close();
        let _ = tokio::time::timeout(PATIENCE, self.tasks.wait()).await;
    }

    /// Where each picture was saved.
    pub(super) fn saved(&self) -> Vec<Option<PathBuf>> {
        self.taken().saved.clone()
    }

    /// Tells how to get those that nobody has seen.
    pub(super) fn hint(&self) {
        let what = match self.taken().unseen {
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
