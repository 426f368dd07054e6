//! What the agent reads of its own confinement: proc_pid_status(5), namespaces(7), statvfs(3),
//! getrlimit(2). What cannot be read counts as the worst.

use std::os::unix::fs::MetadataExt;

use mcp_forge_agent::{Facts, FromAgent, MOUNTS, Mount, NAMESPACES};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::{FsFlags, statvfs};

/// The greeting.
pub(crate) fn hello() -> FromAgent {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hard = |resource| getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard);
    FromAgent::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        facts: Facts {
            descriptors: hard(Resource::RLIMIT_NOFILE),
            core_bytes: hard(Resource::RLIMIT_CORE),
            namespaces: NAMESPACES.map(|name| {
                let path = format!("/proc/self/ns/{name}");
                std::fs::metadata(path).map_or(0, |namespace| namespace.ino())
            }),
            mounts: MOUNTS.map(mount),
            ..read(&status)
        },
    }
}

fn mount(path: &str) -> Mount {
    let Ok(stat) = statvfs(path) else {
        return Mount::default();
    };
    let has = |flag| stat.flags().contains(flag);
    Mount {
        read_only: has(FsFlags::ST_RDONLY),
        no_suid: has(FsFlags::ST_NOSUID),
        no_dev: has(FsFlags::ST_NODEV),
        bytes: stat.blocks().saturating_mul(stat.fragment_size()),
    }
}

/// What the status tells; the rest is the worst.
fn read(status: &str) -> Facts {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or_default()
    };
    let capabilities = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|set| u64::from_str_radix(field(set), 16).unwrap_or(u64::MAX))
        .into_iter()
        .fold(0, std::ops::BitOr::bitor);
    let effective = |name: &str| {
        let ids = field(name).split_whitespace().nth(1);
        ids.and_then(|id| id.parse().ok()).unwrap_or(0)
    };
    let groups = status.contains("\nGroups:").then(|| field("Groups"));
    let gid = effective("Gid");
    Facts {
        uid: effective("Uid"),
        gid,
        groups: groups.map_or(u32::MAX, |groups| {
            // Engines list the group that it has anyway, too.
            let others = groups
                .split_whitespace()
                .filter(|group| group.parse() != Ok(gid));
            u32::try_from(others.count()).unwrap_or(u32::MAX)
        }),
        no_new_privs: field("NoNewPrivs") == "1",
        seccomp: field("Seccomp").parse().unwrap_or(0),
        capabilities,
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_process_is_told_from_others() {
        let confined = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1001\t1000\t1000\n\
                        Groups:\t \nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\n\
                        NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let expected = Facts {
            uid: 1000,
            gid: 1001,
            groups: 0,
            no_new_privs: true,
            seccomp: 2,
            capabilities: 0,
            ..Facts::default()
        };
        assert_eq!(read(confined), expected);
        let more = Facts {
            groups: 2,
            capabilities: 3,
            ..expected
        };
        let with_more = confined
            .replace("CapBnd:\t0", "CapBnd:\t3")
            .replace("\t \n", "\t4 27 1001\n");
        assert_eq!(read(&with_more), more);
        assert_eq!(read(""), Facts::default());
    }

    #[test]
    fn an_open_process_finds_itself_open() {
        let FromAgent::Hello { facts, .. } = hello() else {
            panic!("no hello");
        };
        let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert_eq!(
            facts.namespaces[NAMESPACES.iter().position(|n| *n == "net").unwrap()],
            own
        );
        assert!(facts.namespaces.iter().all(|inode| *inode > 0));
        assert!(facts.mounts[0].bytes > 0);
    }
}
