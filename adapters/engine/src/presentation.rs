//! What sandboxes are made of, for an engine: an image with the agent and the files that are the same
//! everywhere, and the directories that are bound over it, of the host or of an image that mcp-forge keeps.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use mcp_forge_presentation::{ETC_OWN, ETC_SHARED, FORGE, OWN, Placed, SYSTEM};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Name of the image without its tag, which is the hash of what is in it.
pub const REPOSITORY: &str = "mcp-forge/sandbox";

/// What an engine is given once.
pub struct Presentation {
    /// The root file system, tar.
    pub archive: Vec<u8>,
    /// Hash of the archive.
    pub tag: String,
    /// What is bound over it.
    pub binds: Vec<Bind>,
}

/// A directory of the host, read-only in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Absolute, on the host.
    pub source: String,
    /// Absolute, in the sandbox.
    pub target: String,
}

impl Bind {
    /// At the place that it has on the host.
    fn same(path: String) -> Self {
        Self {
            source: path.clone(),
            target: path,
        }
    }
}

impl Presentation {
    /// That of this host; `workspace` is the mode of the directory under the mount of /workspace, which
    /// runc gives to what is mounted there, whatever its options say.
    ///
    /// # Errors
    ///
    /// When the host's directories cannot be looked at.
    pub fn of_host(placed: &[Placed], workspace: u32) -> io::Result<Self> {
        let mut archive = Archive::of_every_sandbox(placed, workspace)?;
        let mut binds = Vec::new();
        for name in SYSTEM {
            let source = Path::new("/").join(name);
            match fs::symlink_metadata(&source) {
                Ok(found) if found.is_symlink() => archive.link(name, &fs::read_link(&source)?)?,
                Ok(found) if found.is_dir() => {
                    archive.directory(name)?;
                    binds.push(Bind::same(format!("/{name}")));
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
                    binds.push(Bind::same(format!("/{inside}")));
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
        archive.with(binds)
    }

    /// That of the image whose root file system is at `root`.
    ///
    /// # Errors
    ///
    /// When it cannot be looked at, and when a name at its top is not UTF-8.
    pub fn of_image(root: &Path, placed: &[Placed], workspace: u32) -> io::Result<Self> {
        let text = |path: &Path| match path.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(io::Error::other(format!("{} is not UTF-8", path.display()))),
        };
        let mut archive = Archive::of_every_sandbox(placed, workspace)?;
        // With the files that are the same in every sandbox: whoever unpacked it saw to that.
        let mut binds = vec![Bind {
            source: text(&root.join("etc"))?,
            target: "/etc".to_owned(),
        }];
        let mut entries = fs::read_dir(root)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (source, kind) = (entry.path(), entry.file_type()?);
            let name = text(Path::new(&entry.file_name()))?;
            if OWN.contains(&name.as_str()) {
                continue;
            }
            if kind.is_symlink() {
                archive.link(&name, &fs::read_link(&source)?)?;
            } else if kind.is_dir() {
                archive.directory(&name)?;
                binds.push(Bind {
                    source: text(&source)?,
                    target: format!("/{name}"),
                });
            }
        }
        archive.with(binds)
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
    /// What no sandbox is without.
    fn of_every_sandbox(placed: &[Placed], workspace: u32) -> io::Result<Self> {
        let mut archive = Self {
            builder: Builder::new(Vec::new()),
            directories: BTreeSet::new(),
        };
        archive.directory_of_mode("tmp", 0o1777)?;
        archive.directory_of_mode("workspace", workspace)?;
        for directory in OWN {
            archive.directory(directory)?;
        }
        let forge = FORGE.trim_start_matches('/');
        archive.directory(forge)?;
        for file in placed {
            if let Some((parent, _)) = file.path.rsplit_once('/') {
                archive.directory(&format!("{forge}/{parent}"))?;
            }
            let path = format!("{forge}/{}", file.path);
            archive.file(&path, file.contents, file.executable)?;
        }
        Ok(archive)
    }

    fn with(self, binds: Vec<Bind>) -> io::Result<Presentation> {
        let archive = self.builder.into_inner()?;
        let hash = Sha256::digest(&archive);
        let tag = hash[..16].iter().map(|byte| format!("{byte:02x}"));
        Ok(Presentation {
            tag: tag.collect(),
            archive,
            binds,
        })
    }

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
        assert!(made.binds.contains(&Bind::same("/usr".to_owned())));
        let secret = ["/home", "/root", "/var", "/run", "/etc/ssl/private"];
        assert!(
            made.binds
                .iter()
                .all(|bind| !secret.iter().any(|s| bind.source.starts_with(s)))
        );
    }

    #[test]
    fn of_an_image_comes_all_but_what_a_sandbox_has_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["etc", "usr/bin", "opt", "run/secrets", "tmp", "workspace"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let made = Presentation::of_image(root.path(), &[], 0o700).unwrap();
        let targets: Vec<&str> = made.binds.iter().map(|bind| bind.target.as_str()).collect();
        assert_eq!(targets, ["/etc", "/opt", "/usr"]);
        let source = root.path().join("usr").display().to_string();
        assert_eq!(made.binds[2].source, source);
        let mut archive = tar::Archive::new(made.archive.as_slice());
        let links: Vec<String> = archive
            .entries()
            .unwrap()
            .filter_map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap()?;
                Some(format!(
                    "{} {}",
                    entry.path().unwrap().display(),
                    link.display()
                ))
            })
            .collect();
        assert_eq!(links, ["bin usr/bin"]);
    }
}
