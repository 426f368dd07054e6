//! The pictures of a program that a person runs: drawn in a terminal, saved in a directory, or
//! told of. They are hostile; nothing of them but base64 and sixels reaches the terminal.

mod protocol;
mod sixel;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use mcp_forge_ports::vocabulary::Picture;
use tokio_util::task::TaskTracker;

use self::protocol::Protocol;
use super::directory::Directory;
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
            match save(directory, number, picture) {
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

    pub(super) fn are_drawn(&self) -> bool {
        self.protocol.is_some()
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
    pub(super) fn hint(&self) -> Option<String> {
        let what = match self.taken().unseen {
            _ if !self.hints => return None,
            0 => return None,
            1 => "1 picture is".to_owned(),
            more => format!("{more} pictures are"),
        };
        Some(format!(
            "mcp-forge: {what} not shown here; --save-plots DIR saves them as files"
        ))
    }
}

/// Saves the picture of this number.
fn save(directory: &Directory, number: usize, picture: &Picture) -> anyhow::Result<PathBuf> {
    let name = format!("plot-{number:03}.{}", ending(&picture.mime_type));
    let place = directory.place(Path::new(&name))?;
    place.put(&picture.data)?;
    Ok(place.path)
}

fn ending(mime_type: &str) -> &'static str {
    match mime_type {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        _ => "bin",
    }
}

fn draw(drawing: &[u8]) -> io::Result<()> {
    standard_output_is_open()?;
    let mut out = io::stdout().lock();
    out.write_all(drawing)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_number_and_type() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::open(parent.path()).unwrap();
        for (number, kind, name) in [
            (1, "png", "plot-001.png"),
            (2, "jpeg", "plot-002.jpg"),
            (3, "gif", "plot-003.gif"),
            (4, "webp", "plot-004.webp"),
            (5, "svg+xml", "plot-005.svg"),
        ] {
            let picture = Picture {
                mime_type: format!("image/{kind}"),
                data: kind.as_bytes().into(),
            };
            let saved = save(&directory, number, &picture).unwrap();
            assert_eq!(saved, parent.path().join(name));
            assert_eq!(std::fs::read(saved).unwrap(), kind.as_bytes());
        }
    }
}
