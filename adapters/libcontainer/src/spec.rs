//! The OCI runtime configuration of one container (OCI runtime-spec 1.2, `config.md`).
//!
//! Everything a sandbox must have is fixed here; only names and limits vary. There is no way to
//! ask for a capability, a device, a host namespace or a network.

use std::path::{Path, PathBuf};

use mcp_forge_presentation::{ENVIRONMENT, FORGE, HOST_NAME, MASKED, READ_ONLY, USER};
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxCapabilitiesBuilder, LinuxNamespaceBuilder, LinuxNamespaceType, Mount,
    MountBuilder, PosixRlimitBuilder, PosixRlimitType, ProcessBuilder, RootBuilder, Spec,
    SpecBuilder, UserBuilder,
};

use crate::protocol::Limits;

fn tmpfs(destination: &str, bytes: u64, options: &[&str]) -> Result<Mount, OciSpecError> {
    // One inode for each 4 KiB, so that empty files are bounded as well.
    let inodes = (bytes / 4096).max(1024);
    let mut all: Vec<String> = [
        "nosuid",
        "nodev",
        &format!("size={bytes}"),
        &format!("nr_inodes={inodes}"),
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    all.extend(options.iter().map(ToString::to_string));
    MountBuilder::default()
        .destination(destination)
        .typ("tmpfs")
        .source("tmpfs")
        .options(all)
        .build()
}

fn mounts(limits: &Limits) -> Result<Vec<Mount>, OciSpecError> {
    Ok(vec![
        MountBuilder::default()
            .destination("/proc")
            .typ("proc")
            .source("proc")
            .options(["nosuid", "noexec", "nodev"].map(String::from))
            .build()?,
        tmpfs("/dev", 64 * 1024, &["noexec", "mode=755"])?,
        tmpfs("/dev/shm", limits.tmp_bytes, &["noexec", "mode=1777"])?,
        tmpfs("/tmp", limits.tmp_bytes, &["mode=1777"])?,
        tmpfs(
            "/workspace",
            limits.workspace_bytes,
            &["mode=0700", "uid=1000", "gid=1000"],
        )?,
    ])
}

/// The configuration of one container.
///
/// `group` is its path in the nursery's unified hierarchy. `bounded` tells that the control
/// groups enforce the limits; where they do not, resource limits of the process are the honest
/// second best.
pub(crate) fn build(
    rootfs: &Path,
    group: &Path,
    limits: &Limits,
    bounded: bool,
) -> Result<Spec, OciSpecError> {
    let none = LinuxCapabilitiesBuilder::default()
        .bounding([])
        .effective([])
        .inheritable([])
        .permitted([])
        .ambient([])
        .build()?;
    let rlimit = |typ, value: u64| {
        PosixRlimitBuilder::default()
            .typ(typ)
            .hard(value)
            .soft(value)
    };
    let mut rlimits = vec![
        rlimit(PosixRlimitType::RlimitNofile, limits.descriptors).build()?,
        rlimit(PosixRlimitType::RlimitCore, 0).build()?,
        rlimit(PosixRlimitType::RlimitMemlock, 64 * 1024).build()?,
        rlimit(PosixRlimitType::RlimitMsgqueue, 64 * 1024).build()?,
        rlimit(PosixRlimitType::RlimitSigpending, 256).build()?,
    ];
    if !bounded {
        rlimits.push(rlimit(PosixRlimitType::RlimitData, limits.memory_bytes).build()?);
        // Counted for the user, whom no other container has.
        rlimits.push(rlimit(PosixRlimitType::RlimitNproc, limits.pids).build()?);
    }
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(
            UserBuilder::default()
                .uid(USER)
                .gid(USER)
                .umask(0o022u32)
                .build()?,
        )
        .args([format!("{FORGE}/agent")])
        .env(ENVIRONMENT.map(String::from))
        .cwd("/workspace")
        .no_new_privileges(true)
        .capabilities(none)
        .rlimits(rlimits)
        .build()?;
    // The user and network namespaces are the creator's own, which are new and serve this container
    // only.
    let namespaces = [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Cgroup,
    ]
    .into_iter()
    .map(|typ| LinuxNamespaceBuilder::default().typ(typ).build())
    .collect::<Result<Vec<_>, _>>()?;
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .cgroups_path(group)
        .masked_paths(MASKED.map(String::from))
        .readonly_paths(READ_ONLY.map(String::from))
        .build()?;
    // Limits are written by the nursery (see `cgroup`), devices need no rules without mknod.
    linux.set_resources(None);
    SpecBuilder::default()
        .version("1.2.0")
        .hostname(HOST_NAME)
        .root(
            RootBuilder::default()
                .path(PathBuf::from(rootfs))
                .readonly(true)
                .build()?,
        )
        .mounts(mounts(limits)?)
        .process(process)
        .linux(linux)
        .build()
}
