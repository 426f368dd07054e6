use proptest::prelude::*;

use super::*;

fn policy() -> SandboxPolicy {
    SandboxPolicy {
        images: vec!["mcp-forge/custom:*".to_owned()],
        volume_roots: vec!["/srv/forge".to_owned()],
        ..SandboxPolicy::default()
    }
}

fn rule(name: &str, decision: Verdict) -> Rule {
    Rule {
        name: name.to_owned(),
        image: None,
        language: None,
        network: None,
        decision,
        justification: "because".to_owned(),
        matching: Vec::new(),
        not_match: Vec::new(),
    }
}

fn evaluate(policy: &SandboxPolicy, proposal: &Proposal) -> Evaluation {
    CheckedPolicy::new(policy).unwrap().evaluate(proposal)
}

fn mount(source: &str, read_only: bool) -> Mount {
    Mount {
        source: source.to_owned(),
        target: "/workspace/data".to_owned(),
        read_only,
        kind: Some(SourceKind::Directory),
    }
}

#[test]
fn what_is_never_given_is_forbidden_by_name_and_all_else_is_as_before() {
    type Change = fn(&mut Proposal);
    let cases: [(&str, Change); 26] = [
        ("", |_| {}),
        ("", |p| p.language = "r".into()),
        ("", |p| p.image = Some("mcp-forge/custom:a".into())),
        ("", |p| {
            p.session = Some("s1".into());
            p.mounts = vec![
                mount("/srv/forge/sessions/s1", false),
                mount("/srv/forge/uploads/s1/a", false),
                mount("/srv/forge/shared", true),
            ];
        }),
        ("privileged", |p| p.privileged = true),
        ("capabilities", |p| {
            p.capabilities = vec!["CAP_NET_RAW".into()]
        }),
        ("devices", |p| p.devices = vec!["/dev/kvm".into()]),
        ("namespaces", |p| p.shared = vec![Shared::Pid]),
        ("user", |p| p.uid = 0),
        ("user", |p| p.gid = 0),
        ("user", |p| p.uid = 65_534),
        ("user", |p| p.gid = u32::MAX),
        ("mounts", |p| {
            p.mounts = vec![Mount {
                kind: Some(SourceKind::Special),
                ..mount("/srv/forge/shared/socket", true)
            }]
        }),
        ("mounts", |p| {
            p.mounts = vec![Mount {
                kind: None,
                ..mount("/srv/forge/shared", true)
            }]
        }),
        ("read_only_root", |p| p.read_only_root = false),
        ("no_new_privileges", |p| p.no_new_privileges = false),
        ("seccomp", |p| p.seccomp = false),
        ("language", |p| p.language = "perl".into()),
        ("session", |p| p.session = Some("..".into())),
        ("image", |p| {
            p.image = Some("evil.example/mcp-forge/custom:a".into())
        }),
        ("image", |p| p.image = Some("no image".into())),
        ("network", |p| p.network = Network::Egress),
        ("network", |p| p.network = Network::Host),
        ("mounts", |p| p.mounts = vec![mount("/", true)]),
        ("mounts", |p| {
            p.session = Some("s1".into());
            p.mounts = vec![mount("/srv/forge/sessions/s2", true)];
        }),
        ("mounts", |p| {
            p.mounts = vec![mount("/srv/forge/shared", false)]
        }),
    ];
    for (expected, change) in cases {
        let mut proposal = Proposal::default();
        change(&mut proposal);
        let evaluation = evaluate(&policy(), &proposal);
        let forbidding: Vec<&str> = evaluation
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::Forbid)
            .map(|decision| decision.rule.as_str())
            .collect();
        if expected.is_empty() {
            assert_eq!(evaluation.verdict, Verdict::Allow, "{evaluation:?}");
        } else {
            assert_eq!(forbidding, [expected], "{evaluation:?}");
            assert_eq!(evaluation.verdict, Verdict::Forbid);
            assert_eq!(evaluation.decisions[0].rule, expected);
        }
    }
}

#[test]
fn mounts_are_below_a_root_and_of_the_session() {
    let mut proposal = Proposal {
        session: Some("s1".to_owned()),
        ..Proposal::default()
    };
    for (source, why) in [
        ("", "no absolute path"),
        ("srv/forge/sessions/s1", "no absolute path"),
        ("/srv/forge/sessions/s1/../s2", "no absolute path"),
        ("/srv//forge/sessions/s1", "no absolute path"),
        ("/srv/forge/sessions/s1/", "no absolute path"),
        ("/", "the whole host"),
        ("/etc", "/etc is in no sandbox"),
        ("/etc/ssl", "/etc is in no sandbox"),
        ("/proc/1/root", "/proc is in no sandbox"),
        ("/sys", "/sys is in no sandbox"),
        ("/var", "/var/lib/containerd is in no sandbox"),
        ("/run/docker.sock", "/run is in no sandbox"),
        ("/usr/share", "/usr is in no sandbox"),
        (
            "/var/lib/docker/volumes",
            "/var/lib/docker is in no sandbox",
        ),
        ("/opt/data", "below no directory in `volume_roots`"),
        (
            "/srv/forger/sessions/s1",
            "below no directory in `volume_roots`",
        ),
        ("/srv/forge", "not in sessions/{id}"),
        ("/srv/forge/sessions", "it is of another session"),
        ("/srv/forge/sessions/s11", "it is of another session"),
        ("/srv/forge/other", "not in sessions/{id}"),
    ] {
        proposal.mounts = vec![mount(source, true)];
        let evaluation = evaluate(&policy(), &proposal);
        assert_eq!(evaluation.verdict, Verdict::Forbid, "{source}");
        let told = &evaluation.decisions[0].justification;
        assert!(told.contains(why), "{source}: {told}");
    }
    for target in [
        "/",
        "/etc",
        "/usr",
        "workspace",
        "/workspace/../etc",
        "/workspaces",
        "/workspace",
        "/mnt",
        "/mnt/",
        "/mnt/a:ro",
        "/mnt/a,b",
        "/mnt/a\nb",
        "/mnt/a\\b",
        &format!("/mnt/{}", "a".repeat(256)),
        &format!("/mnt{}", "/ab".repeat(1400)),
    ] {
        proposal.mounts = vec![Mount {
            target: target.to_owned(),
            ..mount("/srv/forge/sessions/s1", true)
        }];
        let evaluation = evaluate(&policy(), &proposal);
        assert_eq!(evaluation.verdict, Verdict::Forbid, "{target}");
        let told = &evaluation.decisions[0].justification;
        assert!(told.contains("its target must be"), "{target}: {told}");
    }
    proposal.mounts = vec![Mount {
        target: format!("/mnt/{}", "é".repeat(127)),
        ..mount("/srv/forge/sessions/s1", true)
    }];
    assert_eq!(evaluate(&policy(), &proposal).verdict, Verdict::Allow);
    // Without a session nothing is of one, and a root is not the host.
    proposal.session = None;
    proposal.mounts = vec![mount("/srv/forge/sessions/s1", true)];
    assert_eq!(evaluate(&policy(), &proposal).verdict, Verdict::Forbid);
    for root in [
        "/",
        "srv",
        "/srv/../etc",
        "/etc",
        "/var",
        "/var/lib",
        "/proc/1",
        "/usr",
        "/usr/share/forge",
    ] {
        let policy = SandboxPolicy {
            volume_roots: vec![root.to_owned()],
            ..SandboxPolicy::default()
        };
        let faults = CheckedPolicy::new(&policy).unwrap_err();
        assert!(faults.to_string().starts_with("volume_roots: "), "{faults}");
    }
}

#[test]
fn a_proposal_has_names_and_says_nothing_of_what_a_source_is() {
    let read = |text: &str| serde_json::from_str::<Table<Proposal>>(text);
    let mount = r#"{"source": "/a", "target": "/mnt/a"}"#;
    let Table(proposal) = read(&format!("{{\"mounts\": [{mount}]}}")).unwrap();
    assert_eq!(proposal.mounts[0].kind, None);
    for (text, told) in [
        ("[]", "expected an object with names"),
        ("[null, \"r\"]", "expected an object with names"),
        (
            r#"{"mounts": [["/a", "/mnt/a", true]]}"#,
            "expected an object with names",
        ),
        (
            r#"{"mounts": [{"source": "/a", "target": "/b", "kind": "file"}]}"#,
            "unknown field `kind`",
        ),
        (r#"{"uid": 1, "uid": 2}"#, "duplicate field `uid`"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
}

#[test]
fn only_what_was_made_here_is_touched() {
    for action in [Action::Start, Action::Stop, Action::Kill, Action::Remove] {
        assert_eq!(action.decide(true).verdict, Verdict::Allow);
        assert_eq!(action.decide(false).verdict, Verdict::Forbid);
    }
}

#[test]
fn examples_are_held_against_their_rule() {
    let mut policy = policy();
    let of = |image: &str| Proposal {
        image: Some(image.to_owned()),
        ..Proposal::default()
    };
    policy.rules = vec![Rule {
        image: Some("python:3.*".to_owned()),
        matching: vec![of("python:3.12"), of("docker.io/library/python:3.9")],
        not_match: vec![of("evil.example/python:3.12"), Proposal::default()],
        ..rule("pythons", Verdict::Prompt)
    }];
    CheckedPolicy::new(&policy).unwrap();
    policy.rules[0].matching.push(of("python:4"));
    policy.rules[0].not_match.push(of("python:3.1"));
    policy.rules.push(rule("pythons", Verdict::Allow));
    policy.rules.push(Rule {
        image: Some("Python".to_owned()),
        language: Some("perl".to_owned()),
        justification: " ".to_owned(),
        ..rule("", Verdict::Allow)
    });
    policy.images.push("a:*:b".to_owned());
    let told = CheckedPolicy::new(&policy).unwrap_err().to_string();
    for line in [
        "images: \"a:*:b\" is no pattern",
        "rule \"pythons\": it does not speak of its example in `match`, number 3",
        "rule \"pythons\": it speaks of its example in `not_match`, number 3",
        "rule \"\": \"Python\" is no pattern",
        "rule \"\": language \"perl\" must be python or r",
        "rule \"\": it needs a name",
        "rule \"\": it needs a justification",
    ] {
        assert!(told.contains(line), "{line} in {told}");
    }
}

#[test]
fn a_rule_makes_it_stricter_and_never_laxer() {
    let mut strict = policy();
    strict.rules = vec![
        Rule {
            language: Some("r".to_owned()),
            ..rule("ask for R", Verdict::Prompt)
        },
        rule("everything is fine", Verdict::Allow),
    ];
    let python = Proposal::default();
    let r = Proposal {
        language: "r".to_owned(),
        ..Proposal::default()
    };
    assert_eq!(evaluate(&strict, &python).verdict, Verdict::Allow);
    let evaluation = evaluate(&strict, &r);
    assert_eq!(evaluation.verdict, Verdict::Prompt);
    assert_eq!(evaluation.decisions[0].rule, "ask for R");
    assert_eq!(evaluation.decisions.len(), 3);
    let root = Proposal { uid: 0, ..r };
    assert_eq!(evaluate(&strict, &root).verdict, Verdict::Forbid);
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Allow),
        Just(Verdict::Prompt),
        Just(Verdict::Forbid)
    ]
}

fn images() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(prop_oneof![
        Just("python:3.12".to_owned()),
        Just("mcp-forge/custom:a".to_owned()),
        Just("mcp-forge/*:*".to_owned()),
        "[a-z*:/@.]{0,12}",
    ])
}

fn networks() -> impl Strategy<Value = Network> {
    prop_oneof![
        Just(Network::None),
        Just(Network::Egress),
        Just(Network::Host)
    ]
}

prop_compose! {
    fn rules()(
        decision in verdicts(),
        image in images(),
        language in proptest::option::of("python|r"),
        network in proptest::option::of(networks()),
    ) -> Rule {
        Rule { image, language, network, ..rule("x", decision) }
    }
}

prop_compose! {
    fn proposals()(
        image in images(),
        language in "python|r|perl",
        network in networks(),
        uid in 0..3_u32,
        privileged in any::<bool>(),
        session in proptest::option::of("[a-z./]{0,3}"),
        sources in prop::collection::vec("/?(srv|etc|forge|sessions|shared|[a-c.]|/){0,6}", 0..3),
    ) -> Proposal {
        let mounts = sources.iter().map(|source| mount(source, uid == 1)).collect();
        Proposal { image, language, network, uid, privileged, session, mounts, ..Proposal::default() }
    }
}

fn named(mut rules: Vec<Rule>) -> Vec<Rule> {
    for (number, rule) in rules.iter_mut().enumerate() {
        rule.name = number.to_string();
    }
    rules
}

proptest! {
    #[test]
    fn adding_a_rule_never_allows_more_and_the_strictest_wins(
        rules in prop::collection::vec(rules(), 0..6),
        egress in any::<bool>(),
        proposal in proposals(),
    ) {
        let mut policy = SandboxPolicy { egress, ..policy() };
        // Those whose patterns are none are no rules.
        let sound: Vec<Rule> = rules
            .into_iter()
            .filter(|rule| rule.image.as_deref().is_none_or(|image| ImagePattern::parse(image).is_ok()))
            .collect();
        let mut before = evaluate(&policy, &proposal).verdict;
        for rule in named(sound) {
            policy.rules.push(rule);
            let evaluation = evaluate(&policy, &proposal);
            prop_assert!(evaluation.verdict >= before);
            let strictest = evaluation.decisions.iter().map(|decision| decision.verdict).max();
            prop_assert_eq!(Some(evaluation.verdict), strictest);
            prop_assert!(evaluation.decisions.is_sorted_by_key(|d| std::cmp::Reverse(d.verdict)));
            before = evaluation.verdict;
        }
        // Their order does not count.
        policy.rules.reverse();
        prop_assert_eq!(evaluate(&policy, &proposal).verdict, before);
    }

    #[test]
    fn no_barrier_falls_by_a_policy(proposal in proposals(), rules in prop::collection::vec(rules(), 0..3)) {
        let policy = SandboxPolicy {
            images: vec!["mcp-forge/*:*".to_owned(), "python:*".to_owned()],
            egress: true,
            volume_roots: vec!["/srv".to_owned(), "/a".to_owned()],
            rules: named(rules),
        };
        let Ok(policy) = CheckedPolicy::new(&policy) else { return Ok(()) };
        let verdict = policy.evaluate(&proposal).verdict;
        if proposal.uid == 0 || proposal.privileged || proposal.network == Network::Host {
            prop_assert_eq!(verdict, Verdict::Forbid);
        }
        for mount in &proposal.mounts {
            if mount.source.contains("..") || mount.source.starts_with("/etc") {
                prop_assert_eq!(verdict, Verdict::Forbid);
            }
        }
    }
}
