//! Devices: none can be made, and of those of the host there are six that hold nothing.

use serde_json::json;

use crate::place::everywhere;
use crate::verdict::DEVICES;

#[test]
fn no_device_is_made_or_opened() {
    everywhere("making devices", |place| place.expect_refused(&DEVICES));
}

#[test]
fn the_devices_are_those_that_hold_nothing() {
    everywhere("devices", |place| {
        let (facts, control) = place.facts();
        // `ptmx` leads nowhere: there is no file system of terminals.
        let mut expected = json!({
            "fd": "link /proc/self/fd",
            "full": "char 1:7",
            "null": "char 1:3",
            "ptmx": "link pts/ptmx",
            "random": "char 1:8",
            "shm": "directory",
            "stderr": "link /proc/self/fd/2",
            "stdin": "link /proc/self/fd/0",
            "stdout": "link /proc/self/fd/1",
            "tty": "char 5:0",
            "urandom": "char 1:9",
            "zero": "char 1:5",
        });
        if place.is_engine() {
            // Masked: empty, and read-only.
            for name in ["mqueue", "pts"] {
                expected[name] = json!("directory");
            }
        }
        assert_eq!(facts["devices"], expected);
        let more = control["devices"].as_object().unwrap();
        assert!(
            more.len() > expected.as_object().unwrap().len(),
            "{control:#}"
        );
    });
}
