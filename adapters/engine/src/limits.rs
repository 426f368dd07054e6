//! What an engine can enforce, and whether it does.

use std::fs;
use std::os::unix::fs::MetadataExt;

use mcp_forge_ports::vocabulary::{EffectiveLimits, Namespaces, ResourceLimits};
use mcp_forge_ports::{PortError, PortErrorKind};

use crate::counters::Bounds;

/// What an engine says that it enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Able {
    /// Bytes of memory.
    pub memory: bool,
    /// Bytes of swap.
    pub swap: bool,
    /// Processor time.
    pub cpu: bool,
    /// Processes.
    pub pids: bool,
    /// Whether its containers have users that are nobody's on the host.
    pub own_users: bool,
}

impl Able {
    /// The reasons for less than everything; limits under the names that the core has for them.
    pub fn weak(&self, remedy: &str, users_remedy: &str) -> Vec<String> {
        self.weak_on(remedy, users_remedy, has_swap())
    }

    fn weak_on(&self, remedy: &str, users_remedy: &str, has_swap: bool) -> Vec<String> {
        let unbounded: Vec<&str> = [
            ("memory", self.memory),
            ("cpu", self.cpu),
            ("pids", self.pids),
        ]
        .into_iter()
        .filter_map(|(limit, able)| (!able).then_some(limit))
        .collect();
        let mut weak = Vec::new();
        if !unbounded.is_empty() {
            let limits = unbounded.join(", ");
            weak.push(format!(
                "{limits}: the engine has no control group for it ({remedy})"
            ));
        }
        if self.memory && !self.swap && has_swap {
            weak.push(
                "memory: the engine does not limit swap, and there is some; boot with \
                 `swapaccount=1` or turn swap off (`swapoff -a`)"
                    .to_owned(),
            );
        }
        if !self.own_users {
            weak.push(format!(
                "user namespace: programs have a user of the host ({users_remedy})"
            ));
        }
        weak
    }

    /// What will hold for a container of these limits.
    pub(crate) fn effective(&self, limits: &ResourceLimits, weak: Vec<String>) -> EffectiveLimits {
        EffectiveLimits {
            memory_bytes: self.memory.then_some(limits.memory_bytes),
            cpu_quota: self.cpu.then_some(limits.cpu_quota),
            pids: self.pids.then_some(limits.pids),
            weak,
        }
    }

    pub(crate) fn nothing(&self) -> bool {
        !(self.memory || self.cpu || self.pids)
    }

    /// Whether the kernel has the limits that the engine was asked for.
    pub(crate) fn check(
        &self,
        asked: &ResourceLimits,
        bounds: &Bounds,
        name: &str,
    ) -> Result<(), PortError> {
        self.check_on(asked, bounds, name, has_swap())
    }

    fn check_on(
        &self,
        asked: &ResourceLimits,
        bounds: &Bounds,
        name: &str,
        has_swap: bool,
    ) -> Result<(), PortError> {
        let limits = [
            (self.memory, "memory", bounds.memory, asked.memory_bytes),
            (
                self.memory && self.swap,
                "memory and swap",
                bounds.memory_and_swap,
                asked.memory_bytes,
            ),
            (self.cpu, "cpu", bounds.cpu_quota, asked.cpu_quota),
            (self.pids, "pids", bounds.pids, asked.pids),
        ];
        for (able, limit, found, asked) in limits {
            // Without swap on the host nothing is lost by a kernel that does not count it.
            let no_matter = found.is_none() && limit == "memory and swap" && !has_swap;
            if able && !no_matter && found.is_none_or(|found| found > asked) {
                let found = found.map_or("nothing".to_owned(), |found| found.to_string());
                let what = format!(
                    "{name}: the engine was asked for {limit} of {asked}, its control group has {found}"
                );
                return Err(PortError::new(PortErrorKind::Unsupported, what).with_hint(
                    "see the log of the engine; another engine or the embedded runtime enforces it",
                ));
            }
        }
        Ok(())
    }
}

/// Whether this host can put memory elsewhere: proc(5), a line after the headings of /proc/swaps.
fn has_swap() -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// The namespaces of this process, which no sandbox may share: namespaces(7).
pub fn own_namespaces() -> Namespaces {
    let names = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
    let inode = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |ns| ns.ino());
    names.map(|name| (name.to_owned(), inode(name))).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ABLE: Able = Able {
        memory: true,
        swap: true,
        cpu: true,
        pids: true,
        own_users: true,
    };

    #[test]
    fn what_an_engine_cannot_enforce_is_named() {
        let weak = |able: Able, swap| able.weak_on("r", "u", swap);
        assert_eq!(weak(ABLE, true), Vec::<String>::new());
        let users = Able {
            own_users: false,
            ..ABLE
        };
        assert_eq!(
            weak(users, true),
            ["user namespace: programs have a user of the host (u)"]
        );
        let groups = Able {
            cpu: false,
            pids: false,
            ..ABLE
        };
        assert_eq!(
            weak(groups, true),
            ["cpu, pids: the engine has no control group for it (r)"]
        );
        let swap = Able {
            swap: false,
            ..ABLE
        };
        assert_eq!(weak(swap, false), Vec::<String>::new());
        assert!(weak(swap, true)[0].starts_with("memory: the engine does not limit swap"));
    }

    #[test]
    fn limits_that_the_kernel_has_not_are_refused() {
        let asked = ResourceLimits {
            memory_bytes: 1 << 20,
            cpu_quota: 50_000,
            pids: 10,
            descriptors: 256,
            tmp_bytes: 1,
            workspace_bytes: 1,
            timeout: Duration::from_secs(1),
        };
        let kept = Bounds {
            memory: Some(1 << 20),
            memory_and_swap: Some(1 << 20),
            cpu_quota: Some(50_000),
            pids: Some(9),
        };
        let told = |able: Able, bounds: &Bounds| {
            let told = able.check_on(&asked, bounds, "c", true);
            told.err().map(|error| error.context)
        };
        assert_eq!(told(ABLE, &kept), None);
        for (bounds, expected) in [
            (
                Bounds {
                    memory: Some(1 << 21),
                    ..kept
                },
                "c: the engine was asked for memory of 1048576, its control group has 2097152",
            ),
            (
                Bounds {
                    memory_and_swap: None,
                    ..kept
                },
                "c: the engine was asked for memory and swap of 1048576, its control group has nothing",
            ),
            (
                Bounds {
                    cpu_quota: None,
                    ..kept
                },
                "c: the engine was asked for cpu of 50000, its control group has nothing",
            ),
            (
                Bounds {
                    pids: Some(11),
                    ..kept
                },
                "c: the engine was asked for pids of 10, its control group has 11",
            ),
        ] {
            assert_eq!(told(ABLE, &bounds).as_deref(), Some(expected));
        }
        let uncounted = Bounds {
            memory_and_swap: None,
            ..kept
        };
        assert!(ABLE.check_on(&asked, &uncounted, "c", false).is_ok());
        let none = Able {
            memory: false,
            swap: false,
            cpu: false,
            pids: false,
            own_users: true,
        };
        assert_eq!(told(none, &Bounds::default()), None);
        assert!(none.nothing() && !ABLE.nothing());
    }
}
