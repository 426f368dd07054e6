//! Namespaces: the sandbox has its own, makes no new ones and enters none.

use serde_json::json;

use crate::place::everywhere;
use crate::verdict::NAMESPACES;

#[test]
fn no_namespace_is_made_entered_or_looked_up() {
    everywhere("new namespaces", |place| place.expect_refused(&NAMESPACES));
}

#[test]
fn a_sandbox_is_in_namespaces_of_its_own() {
    everywhere("namespaces", |place| {
        let (facts, host) = place.facts();
        let (own, host) = (&facts["namespaces"], &host["namespaces"]);
        for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
            assert_ne!(own[kind], host[kind], "{kind}");
        }
        // Clocks are the host's: there is no way to set them.
        assert_eq!(own["time"], host["time"]);
        for kind in ["pid", "time"] {
            assert_eq!(own[format!("{kind}_for_children")], own[kind]);
        }
        assert_eq!(facts["hostname"], "sandbox");
    });
}

/// Two at once: afterwards the kernel may give a number again.
#[test]
fn two_sandboxes_share_no_namespace() {
    everywhere("namespaces of two sandboxes", |place| {
        let mut server = place.server(&[]);
        let code = "import os, time\n\
                    print('there', flush=True)\n\
                    time.sleep(SECONDS)\n\
                    {kind: os.readlink(f'/proc/self/ns/{kind}') for kind in os.listdir('/proc/self/ns')}";
        let first = server.begin_until(&code.replace("SECONDS", "3"), "there");
        let second = server.call(json!({"code": code.replace("SECONDS", "0")}));
        let first = server.told(first);
        for (kind, number) in first["result"].as_object().unwrap() {
            let same = second["result"][kind] == *number;
            assert_eq!(
                same,
                kind.starts_with("time"),
                "{kind}: {first:#}, {second:#}"
            );
        }
        place.expect_rest(&server);
        server.close();
    });
}
