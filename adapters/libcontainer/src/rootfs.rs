//! The host presentation: a root file system made of the host's own system directories.
//!
//! Made once, in the nursery's private mount namespace, on a tmpfs of its own. Containers share
//! it read-only. What is not named here is not there: no `/home`, `/root`, `/var`, `/run`,
//! `/srv`, `/opt`, and of `/etc` only what programs need to start.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// Directory of the nursery's own tmpfs. Any directory that every host has would do: the mount
/// hides it only inside the nursery's mount namespace.
pub(crate) const WORK: &str = "/tmp";

/// System directories: bound where they are directories, copied where they are links into
/// `/usr`.
const SYSTEM: [&str; 8] = [
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec",
];

/// Parts of `/etc` that hold no secret on any distribution we know and that interpreters or
/// libraries read. A missing one is skipped.
const ETC_SHARED: [&str; 25] = [
    "ld.so.cache",     // the dynamic linker's index
    "ld.so.conf",      // read by ctypes.util.find_library through ldconfig
    "ld.so.conf.d",    // the same
    "alternatives",    // Debian's links from /usr/bin to the chosen program (BLAS, R, editors)
    "ssl/certs",       // public certificates; /etc/ssl/private stays out
    "ssl/openssl.cnf", // read by libcrypto when it starts
    "ca-certificates", // Fedora and Arch: public certificates
    "pki/ca-trust",    // Fedora: public certificates
    "pki/tls/certs",   // Fedora: public certificates
    "crypto-policies", // Fedora: read by libcrypto
    "fonts",           // fontconfig
    "python3",         // Debian's Python configuration
    "python3.9",
    "python3.10",
    "python3.11", // sitecustomize.py
    "python3.12",
    "python3.13",
    "python3.14",
    // Debian's R, each file by name: Renviron.site and Rprofile.site are where hosts keep tokens.
    "R/Renviron",     // where the packages are
    "R/Makeconf",     // the compilers
    "R/ldpaths",      // sourced by R's own wrapper
    "R/repositories", // setRepositories
    "matplotlibrc",   // Debian's matplotlib defaults
    "mime.types",     // the mimetypes module
    "localtime",      // the host's time zone
];

/// Where the agent and the runners are, inside.
pub(crate) const FORGE: &str = "/run/forge";

const PASSWD: &str = "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                      forge:x:1000:1000:forge:/workspace:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nforge:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost sandbox\n::1 localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files\n";

/// A file that every sandbox gets, read-only.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    /// Path below `/run/forge`.
    pub path: &'static str,
    /// Contents.
    pub contents: &'static [u8],
    /// Whether it is a program.
    pub executable: bool,
}

/// Mounts the nursery's tmpfs and builds the presentation on it; returns its directory.
pub(crate) fn prepare(placed: &[Placed]) -> io::Result<PathBuf> {
    let work = Path::new(WORK);
    let base = work.join("base");
    fs::create_dir(&base)?;
    for dir in ["proc", "dev", "tmp", "workspace", "run", "etc", "sys"] {
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

fn etc(etc: &Path) -> io::Result<()> {
    for (name, text) in [
        ("passwd", PASSWD),
        ("group", GROUP),
        ("hosts", HOSTS),
        ("nsswitch.conf", NSSWITCH),
        ("hostname", "sandbox\n"),
        ("resolv.conf", ""),
    ] {
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
