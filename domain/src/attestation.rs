//! What the agent finds of its confinement, compared with what was asked for.
//!
//! The agent is ours and runs before any code of others, so its word counts. It is read from inside
//! because that is where the barriers have to be; memory, CPU and pids are read by the runtime, from
//! the control group, which a sandbox does not see.

use mcp_forge_ports::vocabulary::{GuestHello, GuestMount, Namespaces, ResourceLimits};

use crate::limits::format_byte_size;

/// What a page may add to the size of a file system that was asked for.
const PAGE: u64 = 64 << 10;

/// The barriers that are not there.
pub(crate) fn missing_barriers(
    hello: &GuestHello,
    asked: &ResourceLimits,
    host: &Namespaces,
) -> Vec<String> {
    let mut missing = Vec::new();
    let mut demand = |is_there: bool, what: String| {
        if !is_there {
            missing.push(what);
        }
    };
    demand(hello.no_new_privs, "no_new_privs is off".to_owned());
    let mode = hello.seccomp_mode;
    demand(
        mode == 2,
        format!("seccomp mode is {mode} where 2, a filter, must be"),
    );
    let capabilities = hello.capabilities;
    demand(
        capabilities == 0,
        format!("capabilities are {capabilities:#x} where none must be"),
    );
    demand(hello.uid != 0, "user id is 0".to_owned());
    demand(hello.gid != 0, "group id is 0".to_owned());
    let groups = hello.groups;
    demand(
        groups == 0,
        format!("{groups} supplementary groups where none must be"),
    );
    let (has, asked_for) = (hello.descriptors, asked.descriptors);
    demand(
        has <= asked_for,
        format!("open files: the limit is {has} where {asked_for} was asked for"),
    );
    demand(
        hello.core_bytes == 0,
        "core files can be written".to_owned(),
    );
    for (name, of_host) in host {
        match hello.namespaces.get(name) {
            None | Some(0) => demand(false, format!("{name} namespace: not told")),
            Some(own) => demand(
                own != of_host,
                format!("{name} namespace: that of the host"),
            ),
        }
    }
    let writable = [
        ("/tmp", asked.tmp_bytes),
        ("/workspace", asked.workspace_bytes),
    ];
    for mount in &hello.mounts {
        let path = &mount.path;
        match writable.iter().find(|(writable, _)| writable == path) {
            None => demand(mount.read_only, format!("{path} can be written")),
            Some((_, most)) => {
                demand(
                    mount.inert,
                    format!("{path}: set-user-id bits or device files work"),
                );
                let is_bounded = (1..=most.saturating_add(PAGE)).contains(&mount.bytes);
                let (has, most) = (format_byte_size(mount.bytes), format_byte_size(*most));
                demand(
                    is_bounded,
                    format!("{path}: it has {has} where {most} was asked for"),
                );
            }
        }
    }
    let told = |path: &str| hello.mounts.iter().any(|mount| mount.path == path);
    for path in ["/", "/usr", "/tmp", "/workspace"] {
        demand(told(path), format!("{path}: not told"));
    }
    missing
}

/// What the audit log says of a sandbox in which nothing is missing.
pub(crate) fn facts(hello: &GuestHello) -> serde_json::Value {
    let mount = |mount: &GuestMount| {
        let how = if mount.read_only {
            "read-only"
        } else {
            "nosuid,nodev"
        };
        (mount.path.clone(), how.into())
    };
    let mounts: serde_json::Map<_, _> = hello.mounts.iter().map(mount).collect();
    serde_json::json!({
        "uid": hello.uid,
        "gid": hello.gid,
        "no_new_privs": hello.no_new_privs,
        "seccomp_mode": hello.seccomp_mode,
        "capabilities": hello.capabilities,
        "descriptors": hello.descriptors,
        "own_namespaces": hello.namespaces.keys().collect::<Vec<_>>(),
        "mounts": mounts,
    })
}

#[cfg(test)]
mod tests {
    use mcp_forge_ports::testing::{host_namespaces, sound_hello};

    use super::*;
    use crate::ExecutionPolicy;
    use crate::request::admit;

    fn asked() -> ResourceLimits {
        let request = mcp_forge_ports::vocabulary::ExecutionRequest::new(
            mcp_forge_ports::vocabulary::Language::Python,
            "1",
        );
        admit(&ExecutionPolicy::default(), &request).unwrap()
    }

    #[test]
    fn each_missing_barrier_is_told_and_nothing_else() {
        type Change = fn(&mut GuestHello);
        let cases: [(Change, &[&str]); 17] = [
            (|_| {}, &[]),
            (|h| h.no_new_privs = false, &["no_new_privs is off"]),
            (
                |h| h.seccomp_mode = 1,
                &["seccomp mode is 1 where 2, a filter, must be"],
            ),
            (
                |h| h.capabilities = 0x21,
                &["capabilities are 0x21 where none must be"],
            ),
            (|h| h.uid = 0, &["user id is 0"]),
            (|h| h.gid = 0, &["group id is 0"]),
            (
                |h| h.groups = 2,
                &["2 supplementary groups where none must be"],
            ),
            (
                |h| h.descriptors = 257,
                &["open files: the limit is 257 where 256 was asked for"],
            ),
            (|h| h.core_bytes = 1, &["core files can be written"]),
            (
                |h| h.namespaces = host_namespaces(),
                &[
                    "net namespace: that of the host",
                    "user namespace: that of the host",
                ],
            ),
            (
                |h| h.namespaces.retain(|name, _| name != "net"),
                &["net namespace: not told"],
            ),
            (
                |h| h.namespaces.extend([("net".to_owned(), 0)]),
                &["net namespace: not told"],
            ),
            (|h| h.mounts[0].read_only = false, &["/ can be written"]),
            (
                |h| h.mounts[2].inert = false,
                &["/tmp: set-user-id bits or device files work"],
            ),
            (
                |h| h.mounts[2].bytes = 65 << 20,
                &["/tmp: it has 65m where 64m was asked for"],
            ),
            (
                |h| h.mounts[3].bytes = 0,
                &["/workspace: it has 0 where 1g was asked for"],
            ),
            (|h| drop(h.mounts.remove(1)), &["/usr: not told"]),
        ];
        for (change, expected) in cases {
            let mut hello = sound_hello();
            change(&mut hello);
            assert_eq!(
                missing_barriers(&hello, &asked(), &host_namespaces()),
                expected
            );
        }
    }
}
