//! The list of system calls as a file: libpod takes its path and no contents.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The profile below `directory`, under the hash of its contents; written unless it is there.
///
/// # Errors
///
/// When it can be neither found nor written.
pub(crate) fn file(directory: &Path, profile: &str) -> io::Result<PathBuf> {
    let hash: String = Sha256::digest(profile)[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let path = directory.join(format!("seccomp-{hash}.json"));
    if fs::read(&path).is_ok_and(|found| found == profile.as_bytes()) {
        return Ok(path);
    }
    fs::create_dir_all(directory)?;
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(directory)?;
    file.write_all(profile.as_bytes())?;
    file.persist(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_written_once_and_mended() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/b");
        let path = file(&directory, "{}").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{}");
        let written = fs::metadata(&path).unwrap();
        assert_eq!(written.permissions().mode() & 0o777, 0o644);
        fs::write(&path, "[]").unwrap();
        assert_eq!(file(&directory, "{}").unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"{}");
        assert_ne!(file(&directory, "[]").unwrap(), path);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        assert!(file(&path, "{}").is_err());
    }
}
