//! What a container is asked for, whatever the engine's API is.

use mcp_forge_ports::vocabulary::ResourceLimits;

/// The server that made a container.
pub const LABEL_INSTANCE: &str = "io.mcp-forge.instance";
/// The sandbox that a container is.
pub const LABEL_SANDBOX: &str = "io.mcp-forge.sandbox";

/// What engines put into each container and no sandbox has: devices and drivers of the kernel,
/// terminals, message queues.
pub const OF_ENGINES: [&str; 3] = ["/sys", "/dev/pts", "/dev/mqueue"];

/// Its control group goes with a container, and what was counted with it: the agent stays for so
/// long, or until it is killed.
pub const LINGER: (&str, &str) = ("FORGE_LINGER_MS", "500");

/// Of a quota of processor time, microseconds.
pub const CPU_PERIOD: i64 = 100_000;

/// As APIs have it.
pub fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Inodes of a tmpfs of so many bytes: one for each 4 KiB, so that empty files are bounded as well.
pub fn tmpfs_inodes(bytes: u64) -> u64 {
    (bytes / 4096).max(1024)
}

/// Soft and hard limits of the process: getrlimit(2), without `RLIMIT_`.
pub fn rlimits(limits: &ResourceLimits) -> [(&'static str, i64); 5] {
    [
        ("nofile", int(limits.descriptors)),
        ("core", 0),
        ("memlock", 64 * 1024),
        ("msgqueue", 64 * 1024),
        ("sigpending", 256),
    ]
}
