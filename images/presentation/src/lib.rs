//! What a sandbox is made of, whatever makes it: the host presentation and what is the same for all.
//!
//! Reviewed data, next to no code: the adapters of the runtimes mount it, each in its own way.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// System directories: bound where they are directories, copied where they are links into
/// `/usr`.
pub const SYSTEM: [&str; 8] = [
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec",
];

/// Parts of `/etc` that hold no secret on any distribution we know and that interpreters or
/// libraries read. A missing one is skipped.
pub const ETC_SHARED: [&str; 25] = [
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

/// Directories that every sandbox has of its own. Of `/etc` an image has all but [`ETC_OWN`]; what else it
/// has at these places is not seen.
pub const OWN: [&str; 7] = ["proc", "dev", "tmp", "workspace", "run", "etc", "sys"];

/// Most directories and links at the top of an image: each directory is a mount of every sandbox.
pub const MAX_TOP: usize = 64;

/// Why an image has no root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoot {
    /// It is no digest.
    NoId,
    /// The runtime was told of no place for images.
    NoPlace,
    /// It was removed, or never there.
    NotThere,
}

impl Display for NoRoot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoId => "it is no id",
            Self::NoPlace => "there is no place for images",
            Self::NotThere => "it is not there",
        })
    }
}

/// The root file system of the image `id`: a directory below `roots`.
///
/// # Errors
///
/// When there is none.
pub fn root_of(roots: Option<&Path>, id: &str) -> Result<PathBuf, NoRoot> {
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if id.len() != 64 || !id.bytes().all(hexadecimal) {
        return Err(NoRoot::NoId);
    }
    let root = roots.ok_or(NoRoot::NoPlace)?.join(id);
    match root.is_dir() {
        true => Ok(root),
        false => Err(NoRoot::NotThere),
    }
}

/// Where the agent and the runners are, inside.
pub const FORGE: &str = "/run/forge";

/// Files of `/etc` that are the same in every sandbox, and their contents.
pub const ETC_OWN: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
         forge:x:1000:1000:forge:/workspace:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\nforge:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\n",
    ),
    ("hostname", "sandbox\n"),
    ("resolv.conf", ""),
];

/// Name of the host, as a sandbox sees it.
pub const HOST_NAME: &str = "sandbox";

/// User and group id of the programs, as they see themselves.
pub const USER: u32 = 1000;

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

/// Files of the kernel that tell of the host or act on it, hidden by an empty file or directory.
/// Those that a kernel lacks are skipped. Whatever writes to `pressure` makes a trigger that the
/// kernel keeps time for; `boot_id` would tell runs of one host.
///
/// What programs fit themselves to stays: `cpuinfo`, `loadavg`, `meminfo`, `stat`, `vmstat`.
pub const MASKED: [&str; 27] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/bootconfig",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kpagecount",
    "/proc/latency_stats",
    "/proc/mdstat",
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sys/kernel/random/boot_id",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// Parts of /proc that must not be written, whoever owns them.
pub const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Environment of the agent. Programs get one of their own from it. Without HOME libcontainer
/// would look for it in the user database, with code that libc loads from the root file system.
pub const ENVIRONMENT: [&str; 2] = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace"];
