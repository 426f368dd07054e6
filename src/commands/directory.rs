//! A directory of the person's that takes what a program made. Names in it may be the program's:
//! nothing is written outside. A program that is run again has its files under the same names
//! again: what was there is replaced, whole, and a link is replaced, not followed.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use cap_tempfile::TempFile;

pub(super) struct Directory {
    dir: Dir,
    path: PathBuf,
}

/// Where one file goes.
pub(super) struct Place {
    dir: Dir,
    name: OsString,
    /// For messages.
    pub(super) path: PathBuf,
}

impl Directory {
    /// Makes it if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or takes no files.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        TempFile::new(&dir)?;
        let path = path.to_owned();
        Ok(Self { dir, path })
    }

    /// The place of a file below it, with the directories on the way.
    ///
    /// # Errors
    ///
    /// With its path, when a part of it is no directory or leads out.
    pub(super) fn place(&self, below: &Path) -> anyhow::Result<Place> {
        let path = self.path.join(below);
        let open = || {
            let name = below.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
            let dir = match below.parent() {
                Some(parent) if parent != Path::new("") => {
                    self.dir.create_dir_all(parent)?;
                    self.dir.open_dir(parent)?
                }
                _ => self.dir.try_clone()?,
            };
            io::Result::Ok((dir, name.to_owned()))
        };
        let (dir, name) = open().with_context(|| path.display().to_string())?;
        Ok(Place { dir, name, path })
    }
}

impl Place {
    /// Puts a file there that comes in parts. Nothing is left of it if this fails or is dropped.
    ///
    /// # Errors
    ///
    /// That of `next`, or with the path why it cannot be written.
    pub(super) async fn fill(
        &self,
        mut next: impl AsyncFnMut() -> anyhow::Result<Option<Vec<u8>>>,
    ) -> anyhow::Result<()> {
        let named = || self.path.display().to_string();
        let mut file = TempFile::new(&self.dir).with_context(named)?;
        while let Some(part) = next().await? {
            file.write_all(&part).with_context(named)?;
        }
        file.replace(&self.name).with_context(named)
    }

    /// Puts a whole file there.
    ///
    /// # Errors
    ///
    /// As for [`Place::fill`].
    pub(super) fn put(&self, contents: &[u8]) -> anyhow::Result<()> {
        let write = || {
            let mut file = TempFile::new(&self.dir)?;
            file.write_all(contents)?;
            file.replace(&self.name)
        };
        write().with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn put(directory: &Directory, below: &str, contents: &[u8]) -> anyhow::Result<()> {
        directory.place(Path::new(below))?.put(contents)
    }

    #[test]
    fn what_was_there_is_replaced_and_a_link_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = parent.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("keep"), "keep").unwrap();
        let path = parent.path().join("a/files");
        let directory = Directory::open(&path).unwrap();
        symlink(elsewhere.join("keep"), path.join("one")).unwrap();
        symlink(&elsewhere, path.join("out")).unwrap();
        for contents in [b"first", b"again"] {
            put(&directory, "one", contents).unwrap();
            put(&directory, "b c/é", contents).unwrap();
            assert_eq!(fs::read(path.join("one")).unwrap(), contents);
            assert_eq!(fs::read(path.join("b c/é")).unwrap(), contents);
        }
        assert!(fs::symlink_metadata(path.join("one")).unwrap().is_file());
        for below in ["out/keep", "../x", "/tmp/x", ".."] {
            assert!(put(&directory, below, b"x").is_err(), "{below}");
        }
        assert_eq!(fs::read(elsewhere.join("keep")).unwrap(), b"keep");
        assert_eq!(names(&path), ["b c", "one", "out"]);
        assert_eq!(names(&parent.path().join("a")), ["files"]);
    }

    #[test]
    fn a_file_that_cannot_be_saved_is_named_and_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::open(parent.path()).unwrap();
        fs::create_dir(parent.path().join("a")).unwrap();
        let error = put(&directory, "a", b"x").unwrap_err();
        assert!(format!("{error:#}").contains("/a: "), "{error:#}");
        assert_eq!(names(parent.path()), ["a"]);
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Directory::open(&file).is_err());
    }
}
