//! Requests that are refused, each with a control that is not.

use mcp_forge_ports::PortErrorKind;
use mcp_forge_ports::testing::RuntimeCall;
use mcp_forge_ports::vocabulary::{EffectiveLimits, EndedBy, Severity};

use super::*;

#[tokio::test]
async fn unsound_requests_are_refused_before_anything_is_made() {
    use RefusalKind::{InvalidArgument, LimitExceeded, Unsupported};
    type Change = fn(&mut ExecutionRequest);
    let cases: [(Change, RefusalKind, &str); 10] = [
        (|r| r.code = " \n".into(), InvalidArgument, "code"),
        (|r| r.code = "1\0".into(), InvalidArgument, "code"),
        (
            |r| r.code = "x".repeat((1 << 20) + 1),
            LimitExceeded,
            "code",
        ),
        (|r| r.timeout = Some(0), InvalidArgument, "timeout"),
        (|r| r.timeout = Some(1801), LimitExceeded, "timeout"),
        (|r| r.memory = Some("3g".into()), LimitExceeded, "memory"),
        (|r| r.cpu_quota = Some(100_001), LimitExceeded, "cpu_quota"),
        (
            |r| r.stdin = Some("x".repeat((1 << 20) + 1)),
            LimitExceeded,
            "stdin",
        ),
        (
            |r| r.correlation_id = Some("a b".into()),
            InvalidArgument,
            "correlation_id",
        ),
        (|r| r.language = Language::R, Unsupported, "language"),
    ];
    within(async {
        for (change, kind, field) in cases {
            let world = World::with_policy(good(), |p| p.languages = vec![Language::Python]);
            let mut request = python();
            change(&mut request);
            let refusal = world.run(request).await.unwrap_err();
            assert_eq!(refusal.kind, kind, "{refusal:?}");
            assert_eq!(refusal.field.as_deref(), Some(field), "{refusal:?}");
            assert!(!refusal.hint.is_empty());
            assert_eq!(refusal.correlation_id, "correlation-1");
            assert_eq!(world.audited(), ["execution.refused"]);
            let entry = world.entry(AuditKind::ExecutionRefused);
            assert_eq!(entry.severity, Severity::Warning);
            assert_eq!(entry.success, Some(false));
            assert_eq!(entry.details["kind"], kind.as_str());
            assert_eq!(entry.details["field"], field);
            assert_eq!(world.runtime.specs(), []);
            assert!(world.guest.jobs().is_empty());
        }
        // The control: the same request without the change.
        let world = World::with_policy(good(), |p| p.languages = vec![Language::Python]);
        assert_eq!(world.outcome().await.ended_by, EndedBy::Completed);
        assert_eq!(world.runtime.specs().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_of_an_adapter_is_audited_without_its_texts() {
    let refusal = |field: Option<&str>, id: &str| Refusal {
        kind: RefusalKind::InvalidArgument,
        message: "`owl` is not an argument".to_owned(),
        hint: "leave owl out".to_owned(),
        field: field.map(str::to_owned),
        allowed: Some("no owl".to_owned()),
        correlation_id: id.to_owned(),
    };
    let cases = [
        (
            Some("timeout"),
            "ticket-1",
            "ticket-1",
            "invalid_argument: timeout",
        ),
        (Some("owl"), "", "correlation-1", "invalid_argument"),
        (None, "an owl", "correlation-1", "invalid_argument"),
    ];
    for (field, id, given, error) in cases {
        let world = World::new(good());
        let asked = refusal(field, id);
        let told = world
            .service
            .refuse(asked.clone(), Some("client".to_owned()))
            .await;
        let correlation_id = given.to_owned();
        assert_eq!(
            told,
            Refusal {
                correlation_id,
                ..asked
            }
        );
        let entry = world.entry(AuditKind::ExecutionRefused);
        assert_eq!(entry.error.as_deref(), Some(error));
        assert_eq!(entry.correlation_id, given);
        assert_eq!(entry.client.as_deref(), Some("client"));
        assert_eq!(entry.success, Some(false));
        assert!(!format!("{entry:?}").contains("owl"), "{entry:?}");
    }
}

#[tokio::test]
async fn neither_code_nor_input_nor_output_nor_refused_values_reach_the_audit_log() {
    within(async {
        let world = World::new([
            GuestStep::hello(),
            GuestStep::stdout("owl on stdout"),
            GuestStep::error("OwlError", "owl in an error"),
            GuestStep::exit(1),
        ]);
        let request = ExecutionRequest {
            stdin: Some("owl on stdin".into()),
            source_name: Some("owl.py".into()),
            ..python()
        };
        assert!(world.run(request.clone()).await.is_ok());
        let refused = ExecutionRequest {
            memory: Some("owl".into()),
            ..request.clone()
        };
        assert!(world.run(refused).await.is_err());
        let refused = ExecutionRequest {
            correlation_id: Some("owl owl".into()),
            ..request
        };
        assert!(world.run(refused).await.is_err());

        let log = format!("{:?}", world.audit.events());
        assert!(!log.to_lowercase().contains("owl"), "{log}");
        let hash = crate::output::sha256_hex(SECRET_CODE.as_bytes());
        assert!(log.contains(&hash));
        let entry = world.entry(AuditKind::ExecutionRequest);
        assert_eq!(entry.details["code_sha256"], hash.as_str());
        assert_eq!(entry.details["code_bytes"], SECRET_CODE.len());
        assert_eq!(entry.details["language"], "python");
        assert_eq!(entry.details["limits"]["timeout_s"], 300);
    })
    .await;
}

#[tokio::test]
async fn correlation_ids_and_clients_are_carried_through() {
    within(async {
        let world = World::new(good());
        let request = ExecutionRequest {
            correlation_id: Some("mine:1".into()),
            client: Some("c".repeat(1000)),
            ..python()
        };
        let outcome = world.run(request).await.unwrap();
        assert_eq!(outcome.correlation_id, "mine:1");
        for event in world.audit.events() {
            assert_eq!(event.correlation_id, "mine:1");
            assert_eq!(event.run_id.as_deref(), Some("run-1"));
            assert_eq!(event.client, Some("c".repeat(128)));
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_runs_unaudited() {
    within(async {
        for kind in [
            AuditKind::ExecutionRequest,
            AuditKind::ContainerCreate,
            AuditKind::ContainerStart,
        ] {
            let world = World::new(good());
            world.audit.fail_on(kind);
            let refusal = world.run(python()).await.unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Unavailable, "{kind:?}");
            assert_eq!(refusal.field, None);
            assert!(refusal.message.contains("audit log"), "{refusal:?}");
            assert!(world.guest.jobs().is_empty(), "{kind:?}");
            let made = world.called("create run-1");
            assert_eq!(made, kind != AuditKind::ExecutionRequest);
            assert_eq!(world.called("remove run-1 done"), made);
            let entry = world.entry(AuditKind::ExecutionRefused);
            assert_eq!(entry.severity, Severity::Error);
        }
    })
    .await;
}

#[tokio::test]
async fn a_result_that_cannot_be_audited_is_told_all_the_same() {
    within(async {
        let world = World::new(good());
        for kind in [
            AuditKind::ExecutionResult,
            AuditKind::ContainerStop,
            AuditKind::ContainerRemove,
        ] {
            world.audit.fail_on(kind);
        }
        assert_eq!(world.outcome().await.stdout, "hello\n");
        assert_eq!(
            world.audited(),
            [
                "execution.request",
                "container.create",
                "container.start",
                "sandbox.verdict"
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn failures_of_the_runtime_are_refusals() {
    within(async {
        for call in [RuntimeCall::Info, RuntimeCall::Create, RuntimeCall::Start] {
            for kind in [
                PortErrorKind::Unsupported,
                PortErrorKind::Denied,
                PortErrorKind::Internal,
            ] {
                let world = World::new(good());
                world.runtime.fail(call, kind);
                let refusal = world.run(python()).await.unwrap_err();
                assert_eq!(refusal.kind, refusal_kind(kind), "{call:?} {kind:?}");
                assert!(refusal.message.contains("told to fail"), "{refusal:?}");
                assert!(world.guest.jobs().is_empty());
                let touched = call != RuntimeCall::Info;
                assert_eq!(world.called("remove run-1 done"), touched);
                assert_eq!(
                    world.audited().last().copied(),
                    Some(match call {
                        RuntimeCall::Info => "execution.refused",
                        _ => "container.remove",
                    })
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn failed_steps_are_audited_as_failures() {
    within(async {
        let world = World::new(good());
        world
            .runtime
            .fail(RuntimeCall::Create, PortErrorKind::Denied);
        assert!(world.run(python()).await.is_err());
        let entry = world.entry(AuditKind::ContainerCreate);
        assert_eq!(entry.success, Some(false));
        assert_eq!(entry.severity, Severity::Error);
        assert!(entry.error.unwrap().contains("told to fail"));
        assert!(world.audit.of(AuditKind::ContainerStop).is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_of_somebody_else_is_not_removed() {
    within(async {
        let world = World::new(good());
        world
            .runtime
            .fail(RuntimeCall::Create, PortErrorKind::AlreadyExists);
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Internal);
        assert!(!world.called("remove run-1"));
        assert!(!world.called("kill run-1"));
    })
    .await;
}

fn weak() -> EffectiveLimits {
    EffectiveLimits {
        memory_bytes: None,
        cpu_quota: Some(50_000),
        pids: Some(1000),
        weak: vec!["swap: not limited without a delegated cgroup".into()],
    }
}

#[tokio::test]
async fn limits_that_are_not_enforced_are_refused() {
    within(async {
        let world = World::new(good());
        world.runtime.set_effective(weak());
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unsupported);
        assert_eq!(refusal.field, None);
        for reason in [
            "memory: nothing enforces it",
            "pids: 1000",
            "swap: not limited",
        ] {
            assert!(refusal.message.contains(reason), "{refusal:?}");
        }
        assert!(!refusal.message.contains("cpu"), "{refusal:?}");
        for remedy in [
            "security.accept_unenforced_limits: true",
            "MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS=true",
            "delegate a cgroup",
            "mcp-forge doctor",
        ] {
            assert!(refusal.hint.contains(remedy), "{refusal:?}");
        }
        assert!(!world.called("start run-1"));
        assert!(world.guest.jobs().is_empty());
        let verdict = world.entry(AuditKind::SandboxVerdict);
        assert_eq!(verdict.details["verdict"], "WeakSandboxMode");
        assert_eq!(verdict.details["accepted"], false);
        assert_eq!(verdict.success, Some(false));
        assert_eq!(
            world.audited(),
            [
                "execution.request",
                "container.create",
                "sandbox.verdict",
                "execution.refused",
                "container.remove",
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn limits_that_are_not_enforced_run_where_the_operator_accepts_it() {
    within(async {
        let world = World::with_policy(good(), |p| p.accept_unenforced = true);
        world.runtime.set_effective(weak());
        let outcome = world.outcome().await;
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        assert!(!outcome.limits.enforced());
        assert_eq!(outcome.limits.effective, weak());
        let verdict = world.entry(AuditKind::SandboxVerdict);
        assert_eq!(verdict.severity, Severity::Warning);
        assert_eq!(verdict.details["accepted"], true);
        assert_eq!(verdict.details["reasons"].as_array().unwrap().len(), 3);

        // But not without a word in the audit log.
        let world = World::with_policy(good(), |p| p.accept_unenforced = true);
        world.runtime.set_effective(weak());
        world.audit.fail_on(AuditKind::SandboxVerdict);
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unavailable);
        assert!(!world.called("start run-1"));

        // Where a strong sandbox is required, nothing is accepted.
        let world = World::with_policy(good(), |p| {
            p.accept_unenforced = true;
            p.require_strong = true;
        });
        world.runtime.set_effective(weak());
        let refusal = world.run(python()).await.unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unsupported);
        assert!(
            refusal.hint.contains("require_strong_sandbox"),
            "{refusal:?}"
        );
        assert!(!world.called("start run-1"));

        // The control.
        let world = World::with_policy(good(), |p| p.require_strong = true);
        assert!(world.outcome().await.limits.enforced());
        let verdict = world.entry(AuditKind::SandboxVerdict);
        assert_eq!(verdict.severity, Severity::Info);
        assert_eq!(verdict.details["verdict"], "SandboxConfirmed");
        assert_eq!(verdict.details["found"]["uid"], 1000);
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_is_not_ready_in_time_is_refused_and_removed_when_it_is() {
    within(async {
        for call in [RuntimeCall::Info, RuntimeCall::Create, RuntimeCall::Start] {
            let world = World::new(good());
            world.runtime.hold(call);
            let answer = world.start(python(), &CancellationToken::new());
            world.clock.pass(s(30)).await;
            let refusal = answer.await.unwrap().unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Unavailable, "{call:?}");
            assert!(refusal.message.contains("30 s"), "{refusal:?}");
            assert!(!world.called("remove run-1"));
            world.runtime.release(call);
            world.idle().await;
            assert_eq!(world.called("remove run-1 done"), call != RuntimeCall::Info);
            assert!(world.guest.jobs().is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_does_not_report_in_time_is_refused() {
    within(async {
        let world = World::new([GuestStep::Until(CancellationToken::new())]);
        let answer = world.start(python(), &CancellationToken::new());
        world.clock.pass(s(30)).await;
        let refusal = answer.await.unwrap().unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unavailable);
        assert!(
            refusal.message.contains("did not report within 30 s"),
            "{refusal:?}"
        );
        assert!(world.called("kill run-1 done"));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn beyond_the_queue_is_busy() {
    within(async {
        let gate = CancellationToken::new();
        let script = [
            GuestStep::hello(),
            GuestStep::Until(gate.clone()),
            GuestStep::exit(0),
        ];
        let world = World::with_policy(script, |p| {
            p.concurrency = 1;
            p.queue = 1;
        });
        let cancel = CancellationToken::new();
        let first = world.start(python(), &cancel);
        world.journal.until("observe running").await;
        let second = world.start(python(), &cancel);
        world.journal.until("observe queued").await;
        let refusal = world.start(python(), &cancel).await.unwrap().unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Busy);
        assert_eq!(refusal.field, None);
        assert!(refusal.hint.contains("try again"), "{refusal:?}");
        gate.cancel();
        assert!(first.await.unwrap().is_ok());
        assert!(second.await.unwrap().is_ok());
        world.idle().await;
        assert_eq!(world.outcome().await.ended_by, EndedBy::Completed);
    })
    .await;
}

#[test]
fn an_unsound_policy_makes_no_service() {
    let world_with = |concurrency| {
        let journal = Journal::new();
        let ports = RunPorts {
            runtime: Arc::new(FakeRuntime::new(&journal)),
            guest: Arc::new(FakeGuest::new(&journal, [])),
            audit: Arc::new(FakeAudit::new(&journal)),
            clock: Arc::new(FakeClock::new()),
            ids: Arc::new(FakeIds::new()),
            blobs: Arc::new(FakeBlobs::new()),
            images: None,
            background: Arc::new(FakeBackground::new()),
        };
        RunService::new(
            ports,
            ExecutionPolicy {
                concurrency,
                ..ExecutionPolicy::default()
            },
        )
    };
    assert!(world_with(1).is_ok());
    let faults = world_with(0).unwrap_err();
    assert_eq!(faults.0[0].field, "concurrency");
}
