//! The host presentation: a root file system made of the host's own system directories.
//!
//! Made once, in the nursery's private mount namespace, on a tmpfs of its own. Containers share
//! it read-only. What is not named here is not there: no `/home`, `/root`, `/var`, `/run`,
//! `/srv`, `/opt`, and of `/etc` only what programs need to start.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use mcp_forge_presentation::{ETC_OWN, ETC_SHARED, FORGE, OWN, Placed, SYSTEM};
use nix::mount::{MsFlags, mount};

/// Directory of the nursery's own tmpfs. Any directory that every host has would do: the mount
/// hides it only inside the nursery's mount namespace.
pub(crate) const WORK: &str = "/tmp";

/// Mounts the nursery's tmpfs and builds the presentation on it; returns its directory.
pub(crate) fn prepare(placed: &[Placed]) -> io::Result<PathBuf> {
    let work = Path::new(WORK);
    let base = work.join("base");
    fs::create_dir(&base)?;
    for dir in OWN {
        fs::create_dir(base.join(dir))?;
    }
    for name in SYSTEM {
        let source = Path::new("/").join(name);
        let target = base.join(name);
        match fs::symlink_metadata(&source) {
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(&source)?, &target)?,
            Ok(meta) if meta.is_dir() => bind(&source, &target)?,
            _ => {}
        }
    }
    etc(&base.join("etc"))?;
    let forge = base.join(FORGE.trim_start_matches('/'));
    for file in placed {
        let target = forge.join(file.path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&target, file.contents)?;
        let mode = if file.executable { 0o555 } else { 0o444 };
        fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
    }
    Ok(base)
}

/// Presents an image at `base`: its own directories read-only, and ours in the place of those that every
/// sandbox has of its own. `host` is the host presentation, of which the agent comes.
pub(crate) fn present(image: &Path, host: &Path, base: &Path) -> io::Result<()> {
    fs::create_dir(base)?;
    for dir in OWN {
        fs::create_dir(base.join(dir))?;
    }
    for entry in fs::read_dir(image)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let target = base.join(&name);
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else if kind.is_dir() {
            bind(&entry.path(), &target)?;
        }
    }
    // With the files that are the same in every sandbox: whoever unpacked it saw to that.
    bind(&image.join("etc"), &base.join("etc"))?;
    let forge = FORGE.trim_start_matches('/');
    bind(&host.join(forge), &base.join(forge))
}

fn etc(etc: &Path) -> io::Result<()> {
    for (name, text) in ETC_OWN {
        fs::write(etc.join(name), text)?;
    }
    for name in ETC_SHARED {
        let source = Path::new("/etc").join(name);
        let target = etc.join(name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::symlink_metadata(&source) {
            // A link is copied as a link: where it leads decides whether it works inside.
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(&source)?, &target)?,
            Ok(meta) if meta.is_dir() => bind(&source, &target)?,
            // Small files are copied: a mount would be cloned into each container.
            Ok(meta) if meta.is_file() => match fs::copy(&source, &target) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                other => {
                    other?;
                }
            },
            _ => {}
        }
    }
    Ok(())
}

/// Binds one directory read-only, without set-user-id programs and devices. Mounts below it do
/// not come along.
fn bind(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let none: Option<&str> = None;
    // What lies on mounts of its own below `/usr` belongs to it (a separate /usr/local).
    mount(
        Some(source),
        target,
        none,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        none,
    )?;
    read_only(target)
}

/// Sets the flags on the whole tree of mounts: `mount_setattr` with `AT_RECURSIVE`, or one
/// remount where the kernel is older than 5.12.
fn read_only(target: &Path) -> io::Result<()> {
    match crate::sys::mount_read_only(target) {
        Err(e) if e.raw_os_error() == Some(nix::libc::ENOSYS) => {
            let none: Option<&str> = None;
            mount(
                none,
                target,
                none,
                MsFlags::MS_BIND
                    | MsFlags::MS_REMOUNT
                    | MsFlags::MS_RDONLY
                    | MsFlags::MS_NOSUID
                    | MsFlags::MS_NODEV,
                none,
            )?;
            Ok(())
        }
        other => other,
    }
}
