//! The probes, and what must be told by them whoever made the sandbox. It starts nothing.

use serde_json::{Value, json};

/// Prints what a process sees of itself and of the world.
pub(crate) const FACTS: &str = include_str!("probes/facts.py");

const SHARED: &str = include_str!("probes/attempts.py");
#[allow(dead_code, reason = "the binary `sandbox` tries in Python only")]
const SHARED_R: &str = include_str!("probes/attempts.R");

/// The attempts on one barrier.
pub(crate) struct Attempts {
    pub(crate) name: &'static str,
    source: &'static str,
    source_r: &'static str,
    /// How many there are at least on any machine, in Python and in R.
    least: (usize, usize),
}

macro_rules! attempts {
    ($barrier:literal, $least:expr) => {
        Attempts {
            name: $barrier,
            source: include_str!(concat!("probes/", $barrier, ".py")),
            source_r: include_str!(concat!("probes/", $barrier, ".R")),
            least: $least,
        }
    };
}

pub(crate) const NAMESPACES: Attempts = attempts!("namespaces", (70, 8));
pub(crate) const MOUNTS: Attempts = attempts!("mounts", (90, 10));
pub(crate) const DEVICES: Attempts = attempts!("devices", (55, 6));
pub(crate) const PROC_SYS: Attempts = attempts!("proc_sys", (60, 10));
pub(crate) const CAPABILITIES: Attempts = attempts!("capabilities", (35, 6));
pub(crate) const SECCOMP: Attempts = attempts!("seccomp", (110, 50));
pub(crate) const NETWORK: Attempts = attempts!("network", (250, 8));
pub(crate) const AGENT: Attempts = attempts!("agent", (60, 8));
pub(crate) const RESOURCES: Attempts = attempts!("resources", (20, 4));

/// All of them.
#[allow(dead_code, reason = "for who does not go barrier by barrier")]
pub(crate) const ALL: [&Attempts; 9] = [
    &NAMESPACES,
    &MOUNTS,
    &DEVICES,
    &PROC_SYS,
    &CAPABILITIES,
    &SECCOMP,
    &NETWORK,
    &AGENT,
    &RESOURCES,
];

impl Attempts {
    /// The program, in Python.
    pub(crate) fn python(&self) -> String {
        [SHARED, self.source].concat()
    }

    /// The program, in R.
    #[allow(dead_code, reason = "the binary `sandbox` tries in Python only")]
    pub(crate) fn r(&self) -> String {
        [SHARED_R, self.source_r].concat()
    }

    /// The attempts that did not get in a sandbox what they must.
    pub(crate) fn wrong_answers(&self, told: &Value) -> Vec<String> {
        let told = told.as_object().unwrap();
        let in_r = told.keys().all(|name| name.starts_with("R: "));
        let least = if in_r { self.least.1 } else { self.least.0 };
        let count = told.len();
        assert!(count >= least, "{}: only {count} attempts", self.name);
        let wrong = |(attempt, of): (&String, &Value)| {
            let (got, refusal) = (&of["got"], &of["refusal"]);
            let right = texts(refusal).iter().any(|text| got == text);
            (!right).then(|| format!("{attempt} got {got}, not {refusal}"))
        };
        told.iter().filter_map(wrong).collect()
    }
}

/// The texts of a list.
pub(crate) fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// The sets of capabilities of a process.
pub(crate) const CAPABILITIES_OF: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
pub(crate) const NO_CAPABILITY: &str = "0000000000000000";

/// What the facts are in each sandbox, whoever made it; `engine` tells that its ids are an engine's.
pub(crate) fn expect_nobody(facts: &Value, engine: bool) {
    // Engines list the own group as a supplementary one, too.
    let groups = if engine { "1000" } else { "" };
    let nobody = "1000\t1000\t1000\t1000";
    let fields = [
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Groups", groups),
        ("Uid", nobody),
        ("Gid", nobody),
    ];
    for (field, value) in fields
        .into_iter()
        .chain(CAPABILITIES_OF.map(|set| (set, NO_CAPABILITY)))
    {
        assert_eq!(facts["status"][field], value, "{field}");
    }
    // As the nursery numbers its ids, of which the host's are others: its root, and one of this
    // sandbox's own.
    for map in ["uid_map", "gid_map"] {
        let map: Vec<u32> = texts(&facts[map])
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        match map.as_slice() {
            [0, 0, 1, 1000, 2..=65_535, 1] if !engine => {}
            // A range that is no user's; a rootless engine numbers it as itself is, of which 0 is its user.
            [0, first, 65_536] if engine && (*first >= 100_000 || *first == 1) => {}
            _ => panic!("{map:?} is not the root and one user of the nursery"),
        }
    }
    assert_eq!(facts["core"], json!([0, 0]));
    assert_eq!(facts["nofile"], json!([256, 256]));
    assert_eq!(facts["hostname"], "sandbox");
    assert_eq!(facts["interfaces"], json!(["lo"]));
    let processes = facts["processes"].as_array().unwrap();
    assert_eq!(
        (processes.len(), &processes[0]),
        (2, &json!(1)),
        "the agent and the program"
    );
}
