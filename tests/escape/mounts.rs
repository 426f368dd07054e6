//! Mounts: nobody changes them, the root is read-only, and what is writable is private and knows
//! neither set-user-id programs nor devices.

use crate::place::everywhere;
use crate::verdict::{MOUNTS, texts};

#[test]
fn no_mount_is_made_changed_or_taken_away() {
    everywhere("mounting", |place| place.expect_refused(&MOUNTS));
}

#[test]
fn every_mount_is_as_narrow_as_it_can_be() {
    everywhere("mounts", |place| {
        let (facts, control) = place.facts();
        let writable = ["/proc", "/dev", "/dev/shm", "/tmp", "/workspace"];
        let mounts = facts["mounts"].as_object().unwrap();
        for (point, options) in mounts {
            let options = texts(options);
            let masked = place.is_engine() && point.starts_with("/sys/");
            let kernel = masked
                || point.starts_with("/dev/") && point != "/dev/shm"
                || point.starts_with("/proc/");
            // An engine cannot be asked for these of what is read-only; no-new-privileges and the lack
            // of capabilities make set-user-id programs and devices harmless.
            let read_only = options.contains(&"ro");
            let bound = place.is_engine() && (read_only || point == "/dev");
            let confined = bound || options.contains(&"nosuid") && options.contains(&"nodev");
            assert!(kernel || confined, "{point} is mounted with {options:?}");
            assert!(
                kernel || read_only || writable.contains(&point.as_str()),
                "{point}: {options:?}"
            );
        }
        for point in ["/proc", "/dev", "/dev/shm"] {
            // Nobody inside can write the /dev of an engine.
            let no_programs = texts(&mounts[point]).contains(&"noexec");
            assert!(
                no_programs || place.is_engine() && point == "/dev",
                "{point}"
            );
        }
        // File systems of the kernel that show or hold more than one sandbox. Those of the system
        // directories are whatever the host has.
        let shared = [
            "sysfs",
            "cgroup",
            "cgroup2",
            "devpts",
            "mqueue",
            "debugfs",
            "tracefs",
            "securityfs",
            "bpf",
            "pstore",
            "configfs",
            "fusectl",
            "binfmt_misc",
            "autofs",
            "hugetlbfs",
            "efivarfs",
            "nsfs",
        ];
        let found = |facts: &serde_json::Value| -> Vec<String> {
            let all = texts(&facts["sources"]).into_iter();
            all.filter(|kind| shared.contains(kind))
                .map(str::to_owned)
                .collect()
        };
        // Those that an engine mounts are masked.
        let masked = ["sysfs", "cgroup", "cgroup2", "devpts", "mqueue"];
        let mut inside = found(&facts);
        inside.retain(|kind| !place.is_engine() || !masked.contains(&kind.as_str()));
        assert!(inside.is_empty(), "{inside:?}");
        assert!(!found(&control).is_empty(), "the control proves nothing");
    });
}

#[test]
fn what_is_not_of_the_system_is_not_there() {
    everywhere("the tree of a sandbox", |place| {
        let (facts, control) = place.facts();
        let root = [
            "bin",
            "dev",
            "etc",
            "lib",
            "lib32",
            "lib64",
            "libexec",
            "libx32",
            "proc",
            "run",
            "sbin",
            "sys",
            "tmp",
            "usr",
            "workspace",
        ];
        for (dir, allowed) in [("root", &root[..]), ("run", &["forge"]), ("tmp", &[])] {
            // By these files programs tell that an engine made their container.
            let mark = match dir {
                "root" => ".dockerenv",
                "run" => ".containerenv",
                _ => "",
            };
            let mark = place.is_engine().then_some(mark);
            let allowed: Vec<&str> = allowed.iter().copied().chain(mark).collect();
            let beyond = |facts: &serde_json::Value| -> Vec<String> {
                let all = texts(&facts[dir]).into_iter();
                all.filter(|n| !allowed.contains(n))
                    .map(str::to_owned)
                    .collect()
            };
            assert!(
                beyond(&facts).is_empty(),
                "{dir} has {:?} too",
                beyond(&facts)
            );
            let proves = dir == "tmp" || !beyond(&control).is_empty();
            assert!(proves, "the control of {dir} proves nothing");
        }
        assert_eq!(facts["here"], serde_json::json!(["/workspace", []]));
        let secret = [
            "shadow",
            "gshadow",
            "subuid",
            "sudoers",
            "ssh",
            "machine-id",
            "fstab",
            "environment",
        ];
        let shown: Vec<_> = texts(&facts["etc"])
            .into_iter()
            .filter(|n| secret.contains(n))
            .collect();
        assert!(shown.is_empty(), "/etc has {shown:?}");
        assert!(texts(&control["etc"]).contains(&"shadow"));
    });
}
