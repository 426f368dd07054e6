//! Many runs over one server: each gets its own answer, and the server is afterwards what it was
//! before.

use std::collections::BTreeMap;

use serde_json::json;

use crate::client::{Helpers, Server};
use crate::home::Home;
use crate::host::{SOON, descriptors, memory, note, wait_until};

const RUNS: usize = 200;
const AT_ONCE: usize = 8;

/// How much a process may differ between two moments of rest: caches of the allocator, a thread's
/// stack. A leak of one page per run is more.
const SERVER_SLACK: u64 = 8 << 20;
const HELPER_SLACK: u64 = 512 << 10;

#[test]
fn two_hundred_runs_eight_at_a_time() {
    let Some(home) = Home::for_root("200 runs") else {
        return;
    };
    let mut server = Server::start(&home);
    // What is made once is there after as many at once as there can be.
    runs(&mut server, 3 * AT_ONCE);
    server.expect_rest();
    let before = Gauge::read(&server);
    runs(&mut server, RUNS);
    server.expect_rest();
    let after = wait_until(SOON, || {
        let after = Gauge::read(&server);
        // The creator that waits may be one younger or older, so it is left out.
        let open = (after.descriptors == before.descriptors).then_some(());
        open.ok_or_else(|| format!("open descriptors: {before:?} before, {after:?} after"))?;
        Ok(after)
    });
    note(&format!(
        "memory before {:?}, after {RUNS} runs {:?}",
        before.memory, after.memory
    ));
    for (who, slack) in [
        ("server", SERVER_SLACK),
        ("warden", HELPER_SLACK),
        ("nursery", HELPER_SLACK),
    ] {
        let grown = after.memory[who].saturating_sub(before.memory[who]);
        assert!(
            grown <= slack,
            "the {who} grew by {grown} bytes: {before:?}, {after:?}"
        );
    }
    server.close();
}

/// Descriptors and resident memory of the server and its two lasting helpers.
#[derive(Debug)]
struct Gauge {
    descriptors: BTreeMap<&'static str, usize>,
    memory: BTreeMap<&'static str, u64>,
}

impl Gauge {
    fn read(server: &Server<'_>) -> Self {
        let Helpers { warden, nursery } = server.helpers();
        let who = [
            ("server", server.pid()),
            ("warden", warden),
            ("nursery", nursery),
        ];
        Self {
            descriptors: who.map(|(name, pid)| (name, descriptors(pid))).into(),
            memory: who.map(|(name, pid)| (name, memory(pid, "VmRSS"))).into(),
        }
    }
}

/// Keeps eight calls going until all are answered. Each run must be alone in its sandbox.
fn runs(server: &mut Server<'_>, count: usize) {
    let begin = |server: &mut Server<'_>, number: usize| {
        let code = format!(
            "import os\n\
             assert os.listdir('/tmp') == os.listdir('/workspace') == [], 'somebody was here'\n\
             open('/tmp/mine', 'w').write('{number}')\n\
             open('/workspace/mine', 'w').write('{number}')\n\
             print('run', {number})\n\
             {number} * {number}"
        );
        server.begin_call(json!({ "code": code }))
    };
    let mut open = BTreeMap::new();
    let mut next = 0;
    while next < count.min(AT_ONCE) {
        open.insert(begin(server, next), next);
        next += 1;
    }
    while !open.is_empty() {
        let (id, answer) = server.any_answer();
        let number = open.remove(&id).expect("an answer to a call that is open");
        let told = &answer["result"]["structuredContent"];
        assert_eq!(told["stdout"], format!("run {number}\n"), "{told:#}");
        assert_eq!(told["result"], number * number, "{told:#}");
        if next < count {
            open.insert(begin(server, next), next);
            next += 1;
        }
    }
}
