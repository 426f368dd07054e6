//! Executions that do what a test says.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use mcp_forge_mcp::{ArgumentBounds, McpServer, McpSettings, ProgressPace};
use mcp_forge_ports::driving::{CodeExecution, RunObserver, Runs};
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, EndedBy, ExecutionEnvironment, ExecutionOutcome, ExecutionRequest, Language,
    LimitsReport, Namespaces, OutputBlock, OutputStream, Refusal, RefusalKind, ResourceLimits,
    RunBytes, RunPart, RunStatus, RuntimeDescription, RuntimeInfo, SandboxVerdict, Usage,
};
use tokio_util::sync::CancellationToken;

type Answer = Result<ExecutionOutcome, Refusal>;
type Script = dyn Fn(ExecutionRequest, Arc<dyn RunObserver>, CancellationToken) -> BoxFuture<'static, Answer>
    + Send
    + Sync;

/// An execution that follows a script and remembers what it was asked.
pub(crate) struct Scripted {
    script: Box<Script>,
    requests: Mutex<Vec<ExecutionRequest>>,
    refused: Mutex<Vec<(Refusal, Option<String>)>>,
}

impl Scripted {
    pub(crate) fn new<F, Fut>(script: F) -> Arc<Self>
    where
        F: Fn(ExecutionRequest, Arc<dyn RunObserver>, CancellationToken) -> Fut
            + Send
            + Sync
            + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        Arc::new(Self {
            script: Box::new(move |request, observer, cancel| {
                Box::pin(script(request, observer, cancel))
            }),
            requests: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Answers every request at once with the same.
    pub(crate) fn answering(answer: Answer) -> Arc<Self> {
        Self::new(move |_, _, _| std::future::ready(answer.clone()))
    }

    pub(crate) fn requests(&self) -> Vec<ExecutionRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// What the server refused itself, and who had asked.
    pub(crate) fn refused(&self) -> Vec<(Refusal, Option<String>)> {
        self.refused.lock().unwrap().clone()
    }
}

#[async_trait]
impl CodeExecution for Scripted {
    async fn execute(
        &self,
        request: ExecutionRequest,
        observer: Arc<dyn RunObserver>,
        cancel: CancellationToken,
    ) -> Result<Arc<ExecutionOutcome>, Refusal> {
        self.requests.lock().unwrap().push(request.clone());
        (self.script)(request, observer, cancel).await.map(Arc::new)
    }

    async fn launch(&self, _request: ExecutionRequest) -> Result<RunStatus, Refusal> {
        unreachable!("nothing here runs in the background")
    }

    async fn environment(&self) -> Result<ExecutionEnvironment, Refusal> {
        Ok(ExecutionEnvironment {
            runtime: RuntimeInfo {
                kind: "scripted".to_owned(),
                version: "1".to_owned(),
                weak: vec!["memory: told by nobody".to_owned()],
                host_namespaces: Namespaces::new(),
            },
            image: "host".to_owned(),
            languages: vec![Language::R],
            limits: ResourceLimits {
                memory_bytes: 1 << 20,
                cpu_quota: 7,
                pids: 8,
                descriptors: 9,
                tmp_bytes: 10,
                workspace_bytes: 11,
                timeout: Duration::from_secs(12),
            },
            verdict: Some(SandboxVerdict::Weak),
        })
    }

    async fn refuse(&self, mut refusal: Refusal, client: Option<String>) -> Refusal {
        let mut refused = self.refused.lock().unwrap();
        refused.push((refusal.clone(), client));
        if refusal.correlation_id.is_empty() {
            refusal.correlation_id = format!("fresh-{}", refused.len());
        }
        refusal
    }
}

/// Nothing runs and nothing has run.
pub(crate) struct NoRuns;

fn no_run() -> Refusal {
    Refusal {
        kind: RefusalKind::NotFound,
        message: "there is no such run".to_owned(),
        hint: "list them".to_owned(),
        field: Some("run_id".to_owned()),
        allowed: None,
        correlation_id: "corr-1".to_owned(),
    }
}

#[async_trait]
impl Runs for NoRuns {
    async fn get(&self, _run_id: &str, _wait: Duration) -> Result<RunStatus, Refusal> {
        Err(no_run())
    }

    async fn list(&self) -> Vec<RunStatus> {
        Vec::new()
    }

    async fn cancel(&self, _run_id: &str) -> Result<RunStatus, Refusal> {
        Err(no_run())
    }

    async fn read(&self, _: &str, _: RunPart, _: Range<u64>) -> Result<RunBytes, Refusal> {
        Err(no_run())
    }
}

/// Waits until it is cancelled, notes that, and says so.
pub(crate) fn waiting(started: CancellationToken, cancelled: CancellationToken) -> Arc<Scripted> {
    Scripted::new(move |_, _, cancel| {
        let (started, cancelled) = (started.clone(), cancelled.clone());
        async move {
            started.cancel();
            cancel.cancelled().await;
            // Cleaning up takes its time.
            tokio::time::sleep(Duration::from_millis(20)).await;
            cancelled.cancel();
            Ok(ended(EndedBy::Cancelled))
        }
    })
}

pub(crate) fn server(execution: Arc<Scripted>) -> McpServer {
    McpServer::new(execution, Arc::new(NoRuns), settings())
}

pub(crate) fn settings() -> McpSettings {
    let bounds = ArgumentBounds {
        default_timeout_s: 30,
        max_timeout_s: 300,
        default_memory: "512m".to_owned(),
        max_memory: "4g".to_owned(),
        default_cpu_quota: 100_000,
        max_cpu_quota: 400_000,
        max_code_bytes: 1_000_000,
        max_stdin_bytes: 1_000_000,
        max_files: 100,
        max_file_bytes: 1_000_000,
    };
    let mut settings = McpSettings::new(vec![Language::Python], bounds);
    settings.progress = ProgressPace {
        silence: Duration::from_millis(50),
        gap: Duration::from_millis(20),
    };
    settings
}

/// A run that printed `42` and ended with the value `{"answer": 42}`.
pub(crate) fn completed() -> ExecutionOutcome {
    let value = serde_json::json!({"answer": 42});
    ExecutionOutcome {
        ended_by: EndedBy::Completed,
        language: Language::Python,
        run_id: "run-1".to_owned(),
        correlation_id: "corr-1".to_owned(),
        stdout: "42\n".to_owned(),
        stderr: String::new(),
        stdout_truncated: false,
        stderr_truncated: false,
        stdout_not_utf8: false,
        stderr_not_utf8: false,
        result: Some(value.clone()),
        result_repr: Some("{'answer': 42}".to_owned()),
        blocks: vec![
            OutputBlock::Stream {
                stream: OutputStream::Stdout,
                text: "42\n".to_owned(),
            },
            OutputBlock::Value {
                json: Some(value),
                repr: "{'answer': 42}".to_owned(),
            },
        ],
        files: Vec::new(),
        files_omitted: 0,
        log: None,
        error: None,
        exit_code: Some(0),
        signal: None,
        duration: Duration::from_micros(123_456),
        limits: LimitsReport {
            requested: ResourceLimits {
                memory_bytes: 512 << 20,
                cpu_quota: 100_000,
                pids: 64,
                descriptors: 256,
                tmp_bytes: 64 << 20,
                workspace_bytes: 64 << 20,
                timeout: Duration::from_secs(30),
            },
            effective: EffectiveLimits {
                memory_bytes: Some(512 << 20),
                cpu_quota: Some(100_000),
                pids: Some(64),
                weak: Vec::new(),
            },
        },
        usage: Usage {
            cpu: Duration::from_millis(57),
            peak_memory_bytes: 9_000_000,
        },
        runtime: RuntimeDescription {
            kind: "libcontainer".to_owned(),
            image: "host".to_owned(),
            image_digest: None,
            environment_digest: None,
        },
    }
}

/// A run that wrote a little and then ended like this.
pub(crate) fn ended(ended_by: EndedBy) -> ExecutionOutcome {
    let text = "working\n".to_owned();
    ExecutionOutcome {
        ended_by,
        stdout: text.clone(),
        result: None,
        result_repr: None,
        blocks: vec![OutputBlock::Stream {
            stream: OutputStream::Stdout,
            text,
        }],
        exit_code: None,
        ..completed()
    }
}
