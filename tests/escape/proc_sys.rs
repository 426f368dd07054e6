//! /proc and /sys: nothing of the kernel is written, nothing of the machine is told beyond what
//! programs fit themselves to, and there are no control groups.

use crate::host::note;
use crate::place::everywhere;
use crate::verdict::{PROC_SYS, texts};

#[test]
fn no_switch_of_the_kernel_is_turned() {
    everywhere("writing to /proc and /sys", |place| {
        place.expect_refused(&PROC_SYS);
    });
}

/// Not the known names only: whatever this kernel has.
#[test]
fn no_file_of_the_kernel_is_writable() {
    everywhere("writable files of the kernel", |place| {
        let (facts, control) = place.facts();
        let found = texts(&facts["writable"]);
        assert!(found.is_empty(), "{found:?}");
        assert!(texts(&control["writable"]).len() > 20, "{control:#}");
        assert_eq!(facts["sys"], 0);
        assert!(control["sys"].as_u64() > Some(5));
    });
}

#[test]
fn the_machine_is_not_told() {
    everywhere("facts of the machine", |place| {
        let (facts, control) = place.facts();
        let outside = control["machine"].as_object().unwrap();
        for (name, size) in outside {
            let told = &facts["machine"][name];
            let nothing = *told == 0 || *told == "FileNotFoundError";
            assert!(nothing, "/proc/{name} tells {told} inside, {size} outside");
            if size.as_u64().is_none_or(|size| size == 0) {
                note(&format!(
                    "NO CONTROL /proc/{name}: nothing in it outside either"
                ));
            }
        }
        let telling = outside.values().filter(|size| size.as_u64() > Some(0));
        assert!(telling.count() >= 3, "{control:#}");
        for (name, size) in facts["kept"].as_object().unwrap() {
            assert!(size.as_u64() > Some(0), "/proc/{name}: {size}");
        }
    });
}

/// Where its own groups are on the host is no business of a sandbox.
#[test]
fn the_path_of_the_control_groups_is_not_told() {
    everywhere("names of control groups", |place| {
        let (facts, control) = place.facts();
        let paths = |facts: &serde_json::Value| -> Vec<String> {
            let lines = texts(&facts["groups"]).into_iter();
            lines
                .filter_map(|line| Some(line.splitn(3, ':').nth(2)?.to_owned()))
                .collect()
        };
        assert!(paths(&facts).iter().all(|path| path == "/"), "{facts:#}");
        if paths(&control).iter().all(|path| path == "/") {
            note("NO CONTROL /proc/self/cgroup: the tests are in the root groups themselves");
        }
    });
}
