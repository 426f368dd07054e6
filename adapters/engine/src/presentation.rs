//! The host presentation for an engine: an image with the agent and the files that are the same
//! everywhere, and the directories of the host that are bound over it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use mcp_forge_presentation::{ETC_OWN, ETC_SHARED, FORGE, Placed, SYSTEM};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Name of the image without its tag, which is the hash of what is in it.
pub const REPOSITORY: &str = "mcp-forge/host";

/// What an engine is given once.
pub struct Presentation {
    /// The root file system, tar.
    pub archive: Vec<u8>,
    /// Hash of the archive.
    pub tag: String,
    /// What of the host is bound, each at the place that it has there.
    pub binds: Vec<String>,
}

impl Presentation {
    /// That of this host; `workspace` is the mode of the directory under the mount of /workspace, which
    /// runc gives to what is mounted there, whatever its options say.
    ///
    /// # Errors
    ///
    /// When the host's directories cannot be looked at.
    pub fn of_host(placed: &[Placed], workspace: u32) -> io::Result<Self> {
        let mut archive = Archive {
            builder: Builder::new(Vec::new()),
            directories: BTreeSet::new(),
        };
        let mut binds = Vec::new();
        for directory in ["dev", "etc", "proc", "run", "sys"] {
            archive.directory(directory)?;
        }
        archive.directory_of_mode("tmp", 0o1777)?;
        archive.directory_of_mode("workspace", workspace)?;
        for name in SYSTEM {
            let source = Path::new("/").join(name);
            match fs::symlink_metadata(&source) {
                Ok(found) if found.is_symlink() => archive.link(name, &fs::read_link(&source)?)?,
                Ok(found) if found.is_dir() => {
                    archive.directory(name)?;
                    binds.push(format!("/{name}"));
                }
                _ => {}
            }
        }
        for (name, text) in ETC_OWN {
            archive.file(&format!("etc/{name}"), text.as_bytes(), false)?;
        }
        for name in ETC_SHARED {
            let source = Path::new("/etc").join(name);
            let inside = format!("etc/{name}");
            if let Some((parent, _)) = inside.rsplit_once('/')
                && parent != "etc"
            {
                archive.directory(parent)?;
            }
            match fs::symlink_metadata(&source) {
                // Where it leads decides whether it works inside.
                Ok(found) if found.is_symlink() => {
                    archive.link(&inside, &fs::read_link(&source)?)?
                }
                Ok(found) if found.is_dir() => {
                    archive.directory(&inside)?;
                    binds.push(format!("/{inside}"));
                }
                // Small files are copied: each bind is a mount in each container.
                Ok(found) if found.is_file() => match fs::read(&source) {
                    Ok(contents) => archive.file(&inside, &contents, false)?,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(error) => return Err(error),
                },
                _ => {}
            }
        }
        let forge = FORGE.trim_start_matches('/');
        archive.directory(forge)?;
        for file in placed {
            if let Some((parent, _)) = file.path.rsplit_once('/') {
                archive.directory(&format!("{forge}/{parent}"))?;
            }
            archive.file(
                &format!("{forge}/{}", file.path),
                file.contents,
                file.executable,
            )?;
        }
        let archive = archive.builder.into_inner()?;
        let hash = Sha256::digest(&archive);
        let tag = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self {
            archive,
            tag,
            binds,
        })
    }

    /// The image's name and tag.
    pub fn image(&self) -> String {
        format!("{REPOSITORY}:{}", self.tag)
    }
}

/// An archive whose bytes depend on what is put into it and on nothing else.
struct Archive {
    builder: Builder<Vec<u8>>,
    /// An engine takes no path twice.
    directories: BTreeSet<String>,
}

impl Archive {
    fn header(kind: EntryType, mode: u32, size: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    }

    fn directory(&mut self, path: &str) -> io::Result<()> {
        self.directory_of_mode(path, 0o755)
    }

    fn directory_of_mode(&mut self, path: &str, mode: u32) -> io::Result<()> {
        if !self.directories.insert(path.to_owned()) {
            return Ok(());
        }
        let mut header = Self::header(EntryType::Directory, mode, 0);
        self.builder
            .append_data(&mut header, format!("{path}/"), io::empty())
    }

    fn file(&mut self, path: &str, contents: &[u8], executable: bool) -> io::Result<()> {
        let mode = if executable { 0o555 } else { 0o444 };
        let mut header = Self::header(EntryType::Regular, mode, contents.len());
        self.builder.append_data(&mut header, path, contents)
    }

    fn link(&mut self, path: &str, target: &Path) -> io::Result<()> {
        let mut header = Self::header(EntryType::Symlink, 0o777, 0);
        self.builder.append_link(&mut header, path, target)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_image_holds_the_agent_and_nothing_of_the_host() {
        let placed = [Placed {
            path: "python/runner.py",
            contents: b"pass",
            executable: false,
        }];
        let made = Presentation::of_host(&placed, 0o700).unwrap();
        let again = Presentation::of_host(&placed, 0o700).unwrap();
        assert_eq!(made.tag, again.tag);
        let mut archive = tar::Archive::new(made.archive.as_slice());
        let entries: BTreeMap<String, u32> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let path = entry.path().unwrap().display().to_string();
                (path, entry.header().mode().unwrap())
            })
            .collect();
        assert_eq!(entries["run/forge/python/runner.py"], 0o444);
        assert!(
            entries
                .keys()
                .all(|path| !path.contains("shadow") && !path.starts_with("root"))
        );
        assert!(made.binds.contains(&"/usr".to_owned()));
        let secret = ["/home", "/root", "/var", "/run", "/etc/ssl/private"];
        assert!(
            made.binds
                .iter()
                .all(|bind| !secret.iter().any(|s| bind.starts_with(s)))
        );
    }
}
