//! The directory that `--save-plots` names. A program that is run again has its files under the
//! same names again: what was there is replaced, whole, and a link is replaced, not followed.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use mcp_forge_ports::vocabulary::Picture;
use tempfile::NamedTempFile;

pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes it if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or takes no files.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let directory = Self(path.to_owned());
        directory.temporary()?;
        Ok(directory)
    }

    /// Saves the picture of this number.
    ///
    /// # Errors
    ///
    /// With the name of the file; nothing is left of it then.
    pub(super) fn save(&self, number: usize, picture: &Picture) -> anyhow::Result<PathBuf> {
        let ending = ending(&picture.mime_type);
        let path = self.0.join(format!("plot-{number:03}.{ending}"));
        let write = || {
            let mut file = self.temporary()?;
            file.write_all(&picture.data)?;
            file.persist(&path)?;
            io::Result::Ok(())
        };
        write().with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// A new file, which a mere open could not promise. Its mode is that of any other file.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".plot-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(&self.0)
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn picture(mime_type: &str, data: &[u8]) -> Picture {
        Picture {
            mime_type: mime_type.to_owned(),
            data: data.into(),
        }
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_named_by_number_and_type() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let directory = Directory::open(&path).unwrap();
        let types = ["png", "jpeg", "gif", "webp", "svg+xml"];
        for (at, name) in types.iter().enumerate() {
            let picture = picture(&format!("image/{name}"), name.as_bytes());
            let saved = directory.save(at + 1, &picture).unwrap();
            assert_eq!(fs::read(saved).unwrap(), name.as_bytes());
        }
        let expected = [
            "plot-001.png",
            "plot-002.jpg",
            "plot-003.gif",
            "plot-004.webp",
            "plot-005.svg",
        ];
        assert_eq!(names(&path), expected);
    }

    #[test]
    fn what_was_there_is_replaced_and_a_link_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = parent.path().join("elsewhere");
        fs::write(&elsewhere, "keep").unwrap();
        let path = parent.path().join("plots");
        let directory = Directory::open(&path).unwrap();
        let file = path.join("plot-001.png");
        symlink(&elsewhere, &file).unwrap();
        for contents in [b"first", b"again"] {
            directory.save(1, &picture("image/png", contents)).unwrap();
            assert_eq!(fs::read(&file).unwrap(), contents);
        }
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::read(&elsewhere).unwrap(), b"keep");
        assert_eq!(names(&path), ["plot-001.png"]);
    }

    #[test]
    fn a_file_that_cannot_be_saved_is_named_and_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::open(parent.path()).unwrap();
        fs::create_dir(parent.path().join("plot-001.png")).unwrap();
        let error = directory.save(1, &picture("image/png", b"x")).unwrap_err();
        assert!(format!("{error:#}").contains("plot-001.png: "), "{error:#}");
        assert_eq!(names(parent.path()), ["plot-001.png"]);
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Directory::open(&file).is_err());
    }
}
