//! Identity and capabilities: nobody, without any, and no way to become somebody else.

use serde_json::json;

use crate::host::note;
use crate::place::everywhere;
use crate::verdict::{CAPABILITIES, CAPABILITIES_OF, NO_CAPABILITY, expect_nobody};

#[test]
fn nobody_becomes_somebody_else() {
    everywhere("changes of identity", |place| {
        place.expect_refused(&CAPABILITIES);
    });
}

#[test]
fn a_program_is_nobody() {
    everywhere("identity in a sandbox", |place| {
        let (facts, control) = place.facts();
        expect_nobody(&facts, place.is_engine());
        let some = CAPABILITIES_OF
            .iter()
            .any(|set| control["status"][*set] != NO_CAPABILITY);
        assert!(
            some && control["status"]["NoNewPrivs"] == "0",
            "{control:#}"
        );
        // A program that takes its owner's id outside, and none in here.
        if control["set_uid"].is_null() {
            note("NO CONTROL set-user-id: this host has no such program");
        } else {
            assert_eq!(control["set_uid"][1], "0", "{control:#}");
            assert_eq!(facts["set_uid"], json!(["1000", "1000", "1000", "1000"]));
        }
    });
}
