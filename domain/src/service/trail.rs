//! The audit entries of one run. They hold hashes, sizes and names, never the code, its input or
//! output, or a value of the caller's that was refused.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{AuditLog, Clock};
use mcp_forge_ports::vocabulary::{
    AuditEvent, AuditKind, EffectiveLimits, ExecutionRequest, GuestHello, Refusal, RefusalKind,
    ResourceLimits, SandboxId, SandboxVerdict, Severity,
};
use serde_json::{Value, json};

use super::{RunPorts, bounded};
use crate::attestation;
use crate::output::sha256_hex;

/// How long an entry may take that nothing depends on any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Characters of a client's own name that are kept.
const CLIENT: usize = 128;

/// The arguments that an entry may name.
const ARGUMENTS: [&str; 10] = [
    "code",
    "timeout",
    "memory",
    "cpu_quota",
    "stdin",
    "files",
    "background",
    "run_id",
    "wait",
    "idempotency_key",
];

pub(super) struct Trail {
    audit: Arc<dyn AuditLog>,
    clock: Arc<dyn Clock>,
    run_id: String,
    correlation_id: String,
    client: Option<String>,
}

impl Trail {
    pub(super) fn new(
        ports: &RunPorts,
        run_id: String,
        correlation_id: String,
        client: Option<String>,
    ) -> Self {
        Self {
            audit: Arc::clone(&ports.audit),
            clock: Arc::clone(&ports.clock),
            run_id,
            correlation_id,
            client: client.map(|name| name.chars().take(CLIENT).collect()),
        }
    }

    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(super) fn correlation_id(&self) -> &str {
        &self.correlation_id
    }

    /// Appends an entry.
    pub(super) fn record(&self, event: AuditEvent) -> BoxFuture<'static, Result<(), PortError>> {
        let audit = Arc::clone(&self.audit);
        async move { audit.record(event).await }.boxed()
    }

    /// Appends an entry of something that has happened; that it fails is only logged.
    pub(super) async fn note(&self, event: AuditEvent) {
        let kind = event.kind.as_str();
        let deadline = self.clock.monotonic() + PATIENCE;
        let failure = match bounded(&*self.clock, deadline, self.record(event)).await {
            Some(Ok(())) => return,
            Some(Err(error)) => error.chain(),
            None => format!("not written within {PATIENCE:?}"),
        };
        tracing::warn!(
            entry = kind,
            correlation_id = self.correlation_id,
            run_id = self.run_id,
            failure,
            "audit entry lost"
        );
    }

    fn entry(&self, kind: AuditKind, severity: Severity, details: Value) -> AuditEvent {
        let details = match details {
            Value::Object(details) => details,
            _ => serde_json::Map::new(),
        };
        AuditEvent {
            time: self.clock.now(),
            kind,
            severity,
            run_id: Some(self.run_id.clone()),
            session: None,
            client: self.client.clone(),
            correlation_id: self.correlation_id.clone(),
            success: None,
            details,
            error: None,
        }
    }

    /// An entry of something that went well or did not.
    fn attempt(&self, kind: AuditKind, details: Value, failure: Option<&PortError>) -> AuditEvent {
        let severity = match failure {
            None => Severity::Info,
            Some(_) => Severity::Error,
        };
        AuditEvent {
            success: Some(failure.is_none()),
            error: failure.map(PortError::chain),
            ..self.entry(kind, severity, details)
        }
    }

    pub(super) fn request(
        &self,
        request: &ExecutionRequest,
        limits: &ResourceLimits,
    ) -> AuditEvent {
        let details = json!({
            "language": request.language.as_str(),
            "code_sha256": sha256_hex(request.code.as_bytes()),
            "code_bytes": request.code.len(),
            "stdin_bytes": request.stdin.as_ref().map(String::len),
            "image": request.image,
            "limits": {
                "memory_bytes": limits.memory_bytes,
                "cpu_quota": limits.cpu_quota,
                "pids": limits.pids,
                "descriptors": limits.descriptors,
                "tmp_bytes": limits.tmp_bytes,
                "workspace_bytes": limits.workspace_bytes,
                "timeout_s": limits.timeout.as_secs(),
            },
        });
        self.entry(AuditKind::ExecutionRequest, Severity::Info, details)
    }

    /// A refusal. Its message may repeat what the caller wrote, so it stays out where an argument
    /// is to blame.
    pub(super) fn refused(&self, refusal: &Refusal) -> AuditEvent {
        let kind = refusal.kind.as_str();
        let severity = match refusal.kind {
            RefusalKind::Internal | RefusalKind::Unavailable => Severity::Error,
            _ => Severity::Warning,
        };
        let details = json!({
            "kind": kind,
            "field": refusal.field,
            "allowed": refusal.allowed,
        });
        AuditEvent {
            success: Some(false),
            error: Some(match &refusal.field {
                Some(field) => format!("{kind}: {field}"),
                None => refusal.message.clone(),
            }),
            ..self.entry(AuditKind::ExecutionRefused, severity, details)
        }
    }

    /// A refusal by an adapter. All its texts may be the caller's, also the name of the argument.
    pub(super) fn refused_early(&self, refusal: &Refusal) -> AuditEvent {
        let named = |field: &String| ARGUMENTS.contains(&field.as_str());
        self.refused(&Refusal {
            message: refusal.kind.as_str().to_owned(),
            field: refusal.field.clone().filter(named),
            allowed: None,
            ..refusal.clone()
        })
    }

    pub(super) fn created(
        &self,
        id: &SandboxId,
        made: &Result<EffectiveLimits, PortError>,
    ) -> AuditEvent {
        let mut details = json!({ "sandbox": id.0 });
        if let Ok(effective) = made {
            details["effective"] = json!({
                "memory_bytes": effective.memory_bytes,
                "cpu_quota": effective.cpu_quota,
                "pids": effective.pids,
            });
        }
        self.attempt(AuditKind::ContainerCreate, details, made.as_ref().err())
    }

    pub(super) fn started(&self, id: &SandboxId, failure: Option<&PortError>) -> AuditEvent {
        self.attempt(
            AuditKind::ContainerStart,
            json!({ "sandbox": id.0 }),
            failure,
        )
    }

    pub(super) fn stopped(&self, id: &SandboxId) -> AuditEvent {
        self.attempt(AuditKind::ContainerStop, json!({ "sandbox": id.0 }), None)
    }

    pub(super) fn removed(&self, id: &SandboxId, failure: Option<&PortError>) -> AuditEvent {
        self.attempt(
            AuditKind::ContainerRemove,
            json!({ "sandbox": id.0 }),
            failure,
        )
    }

    pub(super) fn weak(&self, accepted: bool, reasons: &[String]) -> AuditEvent {
        let details = json!({ "verdict": SandboxVerdict::Weak.as_str(), "accepted": accepted, "reasons": reasons });
        AuditEvent {
            success: Some(accepted),
            ..self.entry(AuditKind::SandboxVerdict, Severity::Warning, details)
        }
    }

    /// Every barrier and every limit was found.
    pub(super) fn confirmed(&self, hello: &GuestHello) -> AuditEvent {
        let details = json!({ "verdict": SandboxVerdict::Confirmed.as_str(), "found": attestation::facts(hello) });
        AuditEvent {
            success: Some(true),
            ..self.entry(AuditKind::SandboxVerdict, Severity::Info, details)
        }
    }

    pub(super) fn violation(&self, reasons: &[String]) -> AuditEvent {
        AuditEvent {
            success: Some(false),
            error: Some(reasons.join("; ")),
            ..self.entry(
                AuditKind::SecurityViolation,
                Severity::Critical,
                json!({ "reasons": reasons }),
            )
        }
    }

    pub(super) fn result(&self, success: bool, severity: Severity, details: Value) -> AuditEvent {
        AuditEvent {
            success: Some(success),
            ..self.entry(AuditKind::ExecutionResult, severity, details)
        }
    }
}
