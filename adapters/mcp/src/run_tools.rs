//! The tools for runs that go on or have ended: `get_run`, `list_runs`, `cancel_run`.

use std::sync::Arc;
use std::time::Duration;

use mcp_forge_ports::driving::Runs;
use mcp_forge_ports::vocabulary::{Refusal, RunStatus};
use rmcp::model::{
    CallToolResult, JsonObject, ProgressNotificationParam, ProgressToken, Tool, ToolAnnotations,
};
use rmcp::service::{Peer, RoleServer};
use serde_json::{Map, Value, json};

use crate::settings::ArgumentBounds;
use crate::value::{Fault, Whole, object, text};
use crate::written::WrittenNumbers;
use crate::{tool_result, wire};

/// Longest wait of `get_run`, seconds. Many clients give a call one minute.
const MAX_WAIT: u64 = 300;

const RUN_ID: &str = "the `run_id` of a result";

/// One of these tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunTool {
    Get,
    List,
    Cancel,
}

impl RunTool {
    const ALL: [Self; 3] = [Self::Get, Self::List, Self::Cancel];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Get => "get_run",
            Self::List => "list_runs",
            Self::Cancel => "cancel_run",
        }
    }

    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Get => &["run_id", "wait"],
            Self::List => &[],
            Self::Cancel => &["run_id"],
        }
    }

    fn tool(self) -> Tool {
        let (title, description) = match self {
            Self::Get => (
                "Get a run",
                "The result of a run that was started in the background, or how far it has come. \
                 With `wait` it returns as soon as the run ends, at the latest after that time.",
            ),
            Self::List => (
                "List runs",
                "The runs that wait or go on, and those that ended lately and are still kept, the \
                 newest first.",
            ),
            Self::Cancel => (
                "Cancel a run",
                "Stops a run with everything it started, and returns what it did until then.",
            ),
        };
        let changes = self == Self::Cancel;
        let annotations = ToolAnnotations::with_title(title)
            .read_only(!changes)
            .destructive(changes)
            .idempotent(true)
            .open_world(false);
        Tool::new(self.name(), description, Arc::new(self.schema()))
            .with_title(title)
            .with_annotations(annotations)
    }

    fn schema(self) -> JsonObject {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for name in self.arguments() {
            let schema = match *name {
                "wait" => json!({
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_WAIT,
                    "description": "Seconds to wait for the end of the run; not at all without it.",
                }),
                name => {
                    required.push(name);
                    json!({ "type": "string", "description": "The id of the run." })
                }
            };
            properties.insert((*name).to_owned(), schema);
        }
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "additionalProperties": false,
            "required": required,
            "properties": properties,
        });
        object(schema)
    }

    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// What is wrong with the arguments.
    pub(crate) async fn call(
        self,
        runs: &dyn Runs,
        bounds: &ArgumentBounds,
        mut arguments: Map<String, Value>,
        written: &WrittenNumbers,
        waiting: &Waiting<'_>,
    ) -> Result<CallToolResult, Fault> {
        let known = self.arguments();
        if let Some(name) = arguments
            .keys()
            .find(|name| !known.contains(&name.as_str()))
        {
            let meant = matches!(name.as_str(), "id" | "run" | "runId").then_some("run_id");
            let meant = meant.filter(|meant| known.contains(meant));
            return Err(Fault::unknown(self.name(), name, meant, known));
        }
        let mut run_id = || {
            text(
                "run_id",
                arguments.remove("run_id").unwrap_or_default(),
                written.get("run_id"),
                RUN_ID,
            )?
            .ok_or_else(|| {
                Fault::invalid(
                    "run_id",
                    "`run_id` is missing".to_owned(),
                    "`list_runs` names the runs".to_owned(),
                    RUN_ID,
                )
            })
        };
        let told = match self {
            Self::Get => {
                let run_id = run_id()?;
                let whole = Whole {
                    field: "wait",
                    range: 1..=MAX_WAIT,
                    allowed: &format!("1 to {MAX_WAIT} (seconds)"),
                };
                let wait = arguments.remove("wait").unwrap_or_default();
                let wait = whole.read(&wait, written.get("wait"))?.unwrap_or(0);
                if wait > MAX_WAIT {
                    let message = format!("`wait` must be at most {MAX_WAIT}, not {wait}");
                    let hint = "ask again when the time is over".to_owned();
                    return Err(Fault::invalid("wait", message, hint, whole.allowed));
                }
                waiting.get(runs, &run_id, Duration::from_secs(wait)).await
            }
            Self::Cancel => runs.cancel(&run_id()?).await,
            Self::List => return Ok(list(runs).await),
        };
        Ok(match told {
            Ok(status) => tool_result::status(&status, bounds, runs).await,
            Err(refusal) => tool_result::refused(&refusal),
        })
    }
}

/// Who waits for a run, and is told how it goes on if it asked for that.
pub(crate) struct Waiting<'a> {
    pub(crate) peer: &'a Peer<RoleServer>,
    pub(crate) token: Option<ProgressToken>,
    pub(crate) silence: Duration,
}

impl Waiting<'_> {
    async fn get(
        &self,
        runs: &dyn Runs,
        run_id: &str,
        mut wait: Duration,
    ) -> Result<RunStatus, Refusal> {
        let Some(token) = &self.token else {
            return runs.get(run_id, wait).await;
        };
        let mut progress = 0.0;
        loop {
            let step = wait.min(self.silence);
            let status = runs.get(run_id, step).await?;
            wait -= step;
            if status.answer.is_some() || wait.is_zero() {
                return Ok(status);
            }
            progress += 1.0;
            let told = ProgressNotificationParam::new(token.clone(), progress)
                .with_message(crate::text::status(&status));
            if self.peer.notify_progress(told).await.is_err() {
                return Ok(status);
            }
        }
    }
}

async fn list(runs: &dyn Runs) -> CallToolResult {
    let all = runs.list().await;
    let lines: Vec<_> = all.iter().map(crate::text::status).collect();
    let text = match lines.is_empty() {
        true => "There are no runs.".to_owned(),
        false => lines.join("\n"),
    };
    let runs: Vec<_> = all.iter().map(wire::run_status).collect();
    tool_result::told(text, json!({ "runs": runs }))
}

/// All of them, in a fixed order.
pub(crate) fn tools() -> Vec<Tool> {
    RunTool::ALL.map(RunTool::tool).into()
}
