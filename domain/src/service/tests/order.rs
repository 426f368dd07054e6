//! What is called, what is not, and in which order: strict mocks.

use mcp_forge_ports::driven::MockImageStore;
use mcp_forge_ports::driving::NoObserver;
use mcp_forge_ports::testing::{
    MockAuditLog, MockContainerRuntime, MockGuest, MockGuestRun, enforced_as_asked, sound_hello,
};
use mcp_forge_ports::vocabulary::{
    EndedBy, GuestEvent, GuestExit, Namespaces, OutputStream, SandboxExit, SandboxUsage,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use mockall::Sequence;

use crate::decision::{CheckedPolicy, SandboxPolicy};

use super::*;

async fn execute(
    audit: MockAuditLog,
    runtime: MockContainerRuntime,
    guest: MockGuest,
    request: ExecutionRequest,
) -> Answer {
    let policy = ExecutionPolicy::default();
    execute_with(audit, runtime, guest, None, policy, request).await
}

async fn execute_with(
    audit: MockAuditLog,
    runtime: MockContainerRuntime,
    guest: MockGuest,
    images: Option<MockImageStore>,
    policy: ExecutionPolicy,
    request: ExecutionRequest,
) -> Answer {
    let background = Arc::new(FakeBackground::new());
    let ports = RunPorts {
        runtime: Arc::new(runtime),
        guest: Arc::new(guest),
        audit: Arc::new(audit),
        clock: Arc::new(FakeClock::new()),
        ids: Arc::new(FakeIds::new()),
        blobs: Arc::new(FakeBlobs::new()),
        images: images.map(|images| Arc::new(images) as _),
        background: background.clone(),
    };
    let service = RunService::new(ports, policy).unwrap();
    let answer = service
        .execute(request, Arc::new(NoObserver), CancellationToken::new())
        .await;
    background.idle().await;
    answer
}

/// A byte stream for mocks that never look at it.
async fn some_stream() -> Box<dyn mcp_forge_ports::driven::ByteStream> {
    use mcp_forge_ports::vocabulary::{SandboxId, SandboxRoot, SandboxSpec};
    let runtime = FakeRuntime::new(&Journal::new());
    let spec = SandboxSpec {
        id: SandboxId("any".into()),
        root: SandboxRoot::Host,
        limits: ExecutionPolicy::default()
            .limits
            .resolve(&python())
            .unwrap(),
    };
    runtime.create(&spec).await.unwrap();
    runtime.start(&spec.id).await.unwrap()
}

fn expect_entry(audit: &mut MockAuditLog, order: &mut Sequence, kind: AuditKind) {
    audit
        .expect_record()
        .withf(move |event| event.kind == kind)
        .once()
        .in_sequence(order)
        .returning(|_| Ok(()));
}

#[tokio::test]
async fn a_run_goes_policy_audit_adapter_and_answers_before_it_removes() {
    within(async {
        let stream = some_stream().await;
        let mut audit = MockAuditLog::new();
        let mut runtime = MockContainerRuntime::new();
        let mut guest = MockGuest::new();
        let mut run = MockGuestRun::new();
        let mut order = Sequence::new();

        expect_entry(&mut audit, &mut order, AuditKind::ExecutionRequest);
        runtime
            .expect_info()
            .once()
            .in_sequence(&mut order)
            .returning(|| {
                Ok(RuntimeInfo {
                    kind: "mock".into(),
                    version: "1".into(),
                    weak: vec![],
                    host_namespaces: Namespaces::new(),
                })
            });
        runtime
            .expect_create()
            .withf(|spec| spec.id.0 == "run-1" && spec.limits.memory_bytes == 512 << 20)
            .once()
            .in_sequence(&mut order)
            .returning(|spec| Ok(enforced_as_asked(&spec.limits)));
        expect_entry(&mut audit, &mut order, AuditKind::ContainerCreate);
        runtime
            .expect_start()
            .withf(|id| id.0 == "run-1")
            .once()
            .in_sequence(&mut order)
            .return_once(|_| Ok(stream));
        expect_entry(&mut audit, &mut order, AuditKind::ContainerStart);
        for event in [
            GuestEvent::Hello(sound_hello()),
            GuestEvent::Output {
                stream: OutputStream::Stdout,
                bytes: b"x".to_vec(),
            },
            GuestEvent::Exited(GuestExit {
                status: SandboxExit::Exited(0),
                cpu: Duration::ZERO,
                max_rss_bytes: 0,
            }),
            GuestEvent::Collected { omitted: 0 },
        ] {
            run.expect_next_event()
                .once()
                .return_once(|| Ok(Some(event)));
        }
        guest
            .expect_run()
            .withf(|_, job| {
                job.code == SECRET_CODE && job.source_name == "<code>" && job.stdin.is_none()
            })
            .once()
            .in_sequence(&mut order)
            .return_once(|_, _| Ok(Box::new(run)));
        expect_entry(&mut audit, &mut order, AuditKind::SandboxVerdict);
        runtime
            .expect_usage()
            .once()
            .in_sequence(&mut order)
            .returning(|_| Ok(SandboxUsage::default()));
        expect_entry(&mut audit, &mut order, AuditKind::ExecutionResult);
        runtime
            .expect_remove()
            .withf(|id| id.0 == "run-1")
            .once()
            .in_sequence(&mut order)
            .returning(|_| Ok(()));
        expect_entry(&mut audit, &mut order, AuditKind::ContainerStop);
        expect_entry(&mut audit, &mut order, AuditKind::ContainerRemove);

        let outcome = execute(audit, runtime, guest, python()).await.unwrap();
        assert_eq!(outcome.ended_by, EndedBy::Completed);
        assert_eq!(outcome.stdout, "x");
        assert_eq!(outcome.runtime.kind, "mock");
        assert_eq!(outcome.runtime.image, "host");
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_refused_reaches_no_adapter_but_the_audit_log() {
    within(async {
        let mut audit = MockAuditLog::new();
        audit
            .expect_record()
            .withf(|event| event.kind == AuditKind::ExecutionRefused)
            .once()
            .returning(|_| Ok(()));
        // No expectation is set on runtime and guest: any call would fail the test.
        let request = ExecutionRequest {
            timeout: Some(1801),
            ..python()
        };
        let refusal = execute(
            audit,
            MockContainerRuntime::new(),
            MockGuest::new(),
            request,
        )
        .await
        .unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::LimitExceeded);
        assert_eq!(refusal.field.as_deref(), Some("timeout"));
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_audited_reaches_no_adapter() {
    within(async {
        let mut audit = MockAuditLog::new();
        audit
            .expect_record()
            .returning(|_| Err(PortError::new(PortErrorKind::Internal, "no space left")));
        let refusal = execute(
            audit,
            MockContainerRuntime::new(),
            MockGuest::new(),
            python(),
        )
        .await
        .unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unavailable);
        assert_eq!(refusal.field, None);
        assert!(refusal.message.contains("no space left"), "{refusal:?}");
    })
    .await;
}

#[tokio::test]
async fn an_image_is_asked_for_then_found_and_held_then_used() {
    use mcp_forge_ports::vocabulary::{Image, SandboxRoot};
    within(async {
        let mut audit = MockAuditLog::new();
        audit.expect_record().returning(|_| Ok(()));
        let mut runtime = MockContainerRuntime::new();
        runtime.expect_info().returning(|| {
            Ok(RuntimeInfo {
                kind: "mock".into(),
                version: "1".into(),
                weak: vec![],
                host_namespaces: Namespaces::new(),
            })
        });
        let mut order = Sequence::new();
        let mut images = MockImageStore::new();
        images
            .expect_find()
            .withf(|name| name == "docker.io/library/x:1")
            .once()
            .in_sequence(&mut order)
            .returning(|_| {
                Ok(Image {
                    id: "1d".into(),
                    names: vec![],
                    bytes: 0,
                    imported: std::time::SystemTime::UNIX_EPOCH,
                })
            });
        let held: Arc<dyn Send + Sync> = Arc::new(());
        let (given, kept) = (Arc::clone(&held), Arc::clone(&held));
        images
            .expect_hold()
            .withf(|id| id == "1d")
            .once()
            .in_sequence(&mut order)
            .return_once(|_| Ok(given));
        runtime
            .expect_create()
            .withf(move |spec| {
                let root = SandboxRoot::Image { id: "1d".into() };
                spec.root == root && Arc::strong_count(&kept) == 3
            })
            .once()
            .in_sequence(&mut order)
            .returning(|_| Err(PortError::new(PortErrorKind::Unsupported, "no")));
        runtime.expect_remove().returning(|_| Ok(()));
        let mut policy = ExecutionPolicy::default();
        let allowed = SandboxPolicy {
            images: vec!["x:*".to_owned()],
            ..SandboxPolicy::default()
        };
        policy.sandboxes = CheckedPolicy::new(&allowed).unwrap();
        let request = ExecutionRequest {
            image: Some("x:1".to_owned()),
            ..python()
        };
        let refused = execute_with(
            audit,
            runtime,
            MockGuest::new(),
            Some(images),
            policy,
            request,
        )
        .await;
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Unsupported);
        // Nobody holds it any more but this test.
        assert_eq!(Arc::strong_count(&held), 1);
    })
    .await;
}
