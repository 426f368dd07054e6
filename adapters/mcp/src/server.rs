//! The server that rmcp drives: who we are, which tools there are, one call from end to end.
//!
//! It holds no state of a client: each request stands alone, so that one instance serves any
//! number of connections in any protocol revision.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use mcp_forge_ports::driving::{CodeExecution, NoObserver, RunObserver, Runs};
use mcp_forge_ports::vocabulary::{
    ExecutionOutcome, ExecutionRequest, InputFile, Language, Refusal, RefusalKind,
};
use rmcp::ErrorData;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult,
    ErrorCode, Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, RequestMetaObject, ResourceContents, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::{self, LanguageTool};
use crate::input_files::{self, Source};
use crate::line_transport::OneTooMany;
use crate::one_line::one_line;
use crate::progress::RunWatch;
use crate::run_tools::{self, RunTool, Waiting};
use crate::settings::McpSettings;
use crate::uri::Parsed;
use crate::value::{Fault, describe, echo};
use crate::window::MAX_CALLS;
use crate::written::WrittenNumbers;
use crate::{arguments, resources, tool_result, uri, wire};

/// Longest client name, characters.
const NAME_CHARS: usize = 128;

/// Bytes that files of earlier runs are counted by.
const FETCH_UNIT: u64 = 4096;

/// Room for them: 64 MiB.
const FETCHED_UNITS: u32 = (64 << 20) / 4096;

/// Where `_meta` of a call has the caller's own correlation id.
const CORRELATION_ID: &str = "correlationId";

/// What a model is told about the server as a whole.
const INSTRUCTIONS: &str = "Runs programs in isolated sandboxes with limits on time, memory, CPU \
    and output. Use it to calculate, to analyse data, or to try code out. Each call is a fresh \
    sandbox without network and without the user's files, so send complete programs and print \
    what you need. When a call fails, its text says why and what to do next.";

/// The MCP server. Clones share everything but their calls in flight.
#[derive(Clone)]
pub struct McpServer {
    core: Arc<Core>,
    calls: TaskTracker,
}

struct Core {
    execution: Arc<dyn CodeExecution>,
    runs: Arc<dyn Runs>,
    settings: McpSettings,
    tools: Vec<LanguageTool>,
    run_tools: Vec<Tool>,
    /// Room for files that calls take from earlier runs.
    fetched: Arc<Semaphore>,
}

impl McpServer {
    /// A server that runs code with `execution`, one tool for each language of the settings, and
    /// shows the `runs` of it.
    pub fn new(
        execution: Arc<dyn CodeExecution>,
        runs: Arc<dyn Runs>,
        settings: McpSettings,
    ) -> Self {
        let tools = catalog::tools(&settings);
        Self {
            core: Arc::new(Core {
                execution,
                runs,
                settings,
                tools,
                run_tools: run_tools::tools(),
                fetched: Arc::new(Semaphore::new(FETCHED_UNITS as usize)),
            }),
            calls: TaskTracker::new(),
        }
    }

    /// The same server with its own count of calls in flight.
    pub(crate) fn for_connection(&self) -> (Self, TaskTracker) {
        let calls = TaskTracker::new();
        let server = Self {
            core: Arc::clone(&self.core),
            calls: calls.clone(),
        };
        (server, calls)
    }

    pub(crate) fn settings(&self) -> &McpSettings {
        &self.core.settings
    }

    fn tool(&self, name: &str) -> Option<&LanguageTool> {
        self.core.tools.iter().find(|entry| entry.tool.name == name)
    }

    fn all_tools(&self) -> impl Iterator<Item = &Tool> {
        let languages = self.core.tools.iter().map(|entry| &entry.tool);
        languages.chain(&self.core.run_tools)
    }

    fn unknown_tool(&self, name: &str) -> ErrorData {
        let names: Vec<_> = self.all_tools().map(|tool| tool.name.clone()).collect();
        let message = format!("unknown tool {:?}", echo(name));
        ErrorData::invalid_params(message, Some(json!({ "tools": names })))
    }

    async fn call(
        &self,
        name: &str,
        language: Language,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let (correlation_id, idempotency_key) = match ids(&context.meta) {
            Ok(ids) => ids,
            Err(fault) => return self.refuse(fault, context).await,
        };
        let bounds = &self.core.settings.bounds;
        if context.extensions.get::<OneTooMany>().is_some() {
            return self.refuse(one_too_many(), context).await;
        }
        let written = written(context);
        let call = match arguments::parse(name, language, bounds, arguments, &written) {
            Ok(call) => call,
            Err(fault) => return self.refuse(fault, context).await,
        };
        let mut request = call.request;
        // Held until the core has the request, or for the whole call where it is waited for.
        let (files, _fetched) = match self.files(call.files, context).await {
            Ok(files) => files,
            Err(fault) => return self.refuse(fault, context).await,
        };
        request.files = files;
        request.correlation_id = correlation_id.clone();
        request.idempotency_key = idempotency_key;
        request.client = client(context);
        if call.background {
            return match self.core.execution.launch(request).await {
                Ok(status) => tool_result::launched(&status),
                Err(refusal) => tool_result::refused(&refusal),
            };
        }
        match self.run(request, context).await {
            Some(Ok(outcome)) => tool_result::ended(&outcome, bounds, &*self.core.runs).await,
            Some(Err(refusal)) => tool_result::refused(&refusal),
            None => {
                let fault = Fault {
                    kind: RefusalKind::Internal,
                    message: "a defect of mcp-forge stopped the call".to_owned(),
                    hint: "report it to the operator with the correlation id".to_owned(),
                    field: None,
                    allowed: None,
                };
                tool_result::rejected(fault, correlation_id)
            }
        }
    }

    /// Fetches the contents of files that are parts of earlier runs, as soon as there is room for
    /// as many as a call may have.
    async fn files(
        &self,
        sources: Vec<Source>,
        context: &RequestContext<RoleServer>,
    ) -> Result<(Vec<InputFile>, Option<OwnedSemaphorePermit>), Fault> {
        let mut files = Vec::new();
        // One byte more than allowed: the core says that it is too much.
        let most = self.core.settings.bounds.max_file_bytes + 1;
        let mut room = most;
        let fetches = sources
            .iter()
            .any(|source| matches!(source, Source::Part { .. }));
        let mut fetched = None;
        if fetches {
            let units = u32::try_from(most.div_ceil(FETCH_UNIT)).unwrap_or(u32::MAX);
            let room = Arc::clone(&self.core.fetched);
            let room = room.acquire_many_owned(units.min(FETCHED_UNITS));
            let Some(room) = context.ct.run_until_cancelled(room).await else {
                // Who cancelled gets no answer.
                return Err(one_too_many());
            };
            // It is never closed.
            fetched = room.ok();
        }
        for source in sources {
            let file = match source {
                Source::Given(file) => file,
                Source::Part {
                    path,
                    part:
                        Parsed {
                            run_id,
                            part,
                            range,
                        },
                } => {
                    let range = range.start..range.end.min(range.start.saturating_add(room));
                    match self.core.runs.read(&run_id, part, range).await {
                        Ok(bytes) => InputFile {
                            path,
                            data: bytes.data,
                        },
                        Err(refusal) => {
                            return Err(input_files::fault(refusal.message, refusal.hint));
                        }
                    }
                }
            };
            room = room.saturating_sub(file.data.len() as u64);
            files.push(file);
        }
        if let Some(held) = &mut fetched {
            let used = (most - room).div_ceil(FETCH_UNIT);
            let used = usize::try_from(used).unwrap_or(usize::MAX);
            drop(held.split(held.num_permits().saturating_sub(used)));
        }
        Ok((files, fetched))
    }

    /// Refuses a call that does not reach the core; it only takes note of that.
    async fn refuse(&self, fault: Fault, context: &RequestContext<RoleServer>) -> CallToolResult {
        let id = context.meta.get(CORRELATION_ID).and_then(Value::as_str);
        let id = id.unwrap_or_default().to_owned();
        let refusal = fault.into_refusal(id);
        let refusal = self.core.execution.refuse(refusal, client(context)).await;
        tool_result::refused(&refusal)
    }

    /// Runs the request, reporting progress if the client asked for it; none when it panicked.
    async fn run(
        &self,
        request: ExecutionRequest,
        context: &RequestContext<RoleServer>,
    ) -> Option<Result<Arc<ExecutionOutcome>, Refusal>> {
        let token = context.meta.get_progress_token();
        let watch = Arc::new(RunWatch::default());
        let observer: Arc<dyn RunObserver> = match token {
            Some(_) => Arc::clone(&watch) as _,
            None => Arc::new(NoObserver),
        };
        let run = self
            .core
            .execution
            .execute(request, observer, context.ct.clone());
        let run = AssertUnwindSafe(run).catch_unwind();
        let Some(token) = token else {
            return run.await.ok();
        };
        let ended = CancellationToken::new();
        let run = async {
            let result = run.await;
            ended.cancel();
            result
        };
        let pace = self.core.settings.progress;
        let report = watch.report(&context.peer, token, pace, &ended, &context.ct);
        let (result, ()) = tokio::join!(run, report);
        result.ok()
    }

    /// A `tools/call` whose parameters do not have the shape of one.
    async fn misshapen_call(
        &self,
        params: Option<&Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let member = |name| params.and_then(|params| params.get(name));
        let Some(name) = member("name").and_then(Value::as_str) else {
            let message = "tools/call needs an object with the string `name`";
            return Err(ErrorData::invalid_params(message, None));
        };
        if self.get_tool(name).is_none() {
            return Err(self.unknown_tool(name));
        }
        match member("arguments") {
            Some(arguments) if !arguments.is_object() && !arguments.is_null() => {
                let fault = Fault {
                    kind: RefusalKind::InvalidArgument,
                    message: format!(
                        "the arguments must be an object, not {}",
                        describe(arguments)
                    ),
                    hint: "send an object such as {\"code\": \"print(1)\"}".to_owned(),
                    field: None,
                    allowed: None,
                };
                Ok(self.refuse(fault, context).await)
            }
            _ => Err(ErrorData::invalid_params(
                "tools/call has malformed parameters",
                None,
            )),
        }
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let name =
            Implementation::new("mcp-forge", env!("CARGO_PKG_VERSION")).with_title("mcp-forge");
        ServerConfig::new(
            ServerCapabilities::builder()
                .enable_tools()
                .enable_resources()
                .build(),
        )
        .with_server_info(name)
        .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        one_page(request)?;
        let tools = self.all_tools().cloned().collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.all_tools().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _in_flight = self.calls.token();
        let arguments = request.arguments.unwrap_or_default();
        if let Some(tool) = RunTool::named(&request.name) {
            let bounds = &self.core.settings.bounds;
            let written = written(&context);
            let waiting = Waiting {
                peer: &context.peer,
                token: context.meta.get_progress_token(),
                silence: self.core.settings.progress.silence,
            };
            let called = tool.call(&*self.core.runs, bounds, arguments, &written, &waiting);
            // The client may not wait any more, or be gone.
            let Some(called) = context.ct.run_until_cancelled(called).await else {
                return Err(ErrorData::internal_error("cancelled", None));
            };
            let result = match called {
                Ok(result) => result,
                Err(fault) => self.refuse(fault, &context).await,
            };
            return Ok(result.into());
        }
        let Some(LanguageTool { language, .. }) = self.tool(&request.name) else {
            return Err(self.unknown_tool(&request.name));
        };
        let result = self
            .call(&request.name, *language, arguments, &context)
            .await;
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let start = match request.and_then(|request| request.cursor) {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| {
                let message = format!("unknown cursor {:?}", echo(&cursor));
                ErrorData::invalid_params(message, None)
            })?,
        };
        let (mut page, next) = resources::page(&self.core.runs.list().await, start);
        if start == 0 {
            page.insert(0, resources::environment());
        }
        let mut result = ListResourcesResult::with_all_items(page);
        result.next_cursor = next.map(|next| next.to_string());
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        one_page(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        if uri == uri::ENVIRONMENT {
            return match self.core.execution.environment().await {
                Ok(environment) => {
                    let text = format!("{:#}", wire::environment(&environment));
                    let contents = ResourceContents::text(text, uri);
                    let contents = contents.with_mime_type("application/json");
                    Ok(ReadResourceResult::new(vec![contents]).into())
                }
                Err(refusal) => {
                    let data = Some(wire::refusal(&refusal));
                    Err(ErrorData::internal_error(refusal.message, data))
                }
            };
        }
        let Some(Parsed {
            run_id,
            part,
            range,
        }) = uri::parse(&uri)
        else {
            let forms: Vec<_> = resources::templates()
                .into_iter()
                .map(|template| template.uri_template)
                .collect();
            let message = format!("there is no resource {:?}", echo(&uri));
            return Err(ErrorData::resource_not_found(
                message,
                Some(json!({ "templates": forms })),
            ));
        };
        let range = range.start
            ..range
                .end
                .min(range.start.saturating_add(resources::MAX_READ));
        match self
            .core
            .runs
            .read(&run_id, part.clone(), range.clone())
            .await
        {
            Ok(bytes) => {
                let contents = resources::contents(&uri, &part, range.start, bytes);
                Ok(ReadResourceResult::new(vec![contents]).into())
            }
            Err(refusal) if refusal.kind == RefusalKind::NotFound => {
                let data = Some(wire::refusal(&refusal));
                Err(ErrorData::resource_not_found(refusal.message, data))
            }
            Err(refusal) => {
                let data = Some(wire::refusal(&refusal));
                Err(ErrorData::internal_error(refusal.message, data))
            }
        }
    }

    /// rmcp brings requests here whose method it does not know, or whose parameters it could not
    /// read.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        match request.method.as_str() {
            "tools/call" => {
                let mut result = self
                    .misshapen_call(request.params.as_ref(), &context)
                    .await?;
                // rmcp does this for results of its own types only.
                if context.protocol_version() < Some(ProtocolVersion::V_2026_07_28) {
                    result.result_type = None;
                }
                serde_json::to_value(result)
                    .map(CustomResult::new)
                    .map_err(|error| ErrorData::internal_error(error.to_string(), None))
            }
            "initialize"
            | "server/discover"
            | "ping"
            | "tools/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read" => {
                let message = format!("{} has malformed parameters", request.method);
                Err(ErrorData::invalid_params(message, None))
            }
            method => Err(ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                echo(method),
                None,
            )),
        }
    }
}

fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => {
            let message = "unknown cursor: the list has one page";
            Err(ErrorData::invalid_params(message, None))
        }
    }
}

fn one_too_many() -> Fault {
    Fault {
        kind: RefusalKind::Busy,
        message: format!(
            "the connection holds as many calls as it can: {MAX_CALLS}, or fewer large ones"
        ),
        hint: "wait for the result of an earlier call, or cancel one".to_owned(),
        field: None,
        allowed: None,
    }
}

/// The numbers of a call as its line had them.
fn written(context: &RequestContext<RoleServer>) -> WrittenNumbers {
    let written = context.extensions.get::<WrittenNumbers>();
    written.cloned().unwrap_or_default()
}

/// Who asks, as it says. It has a name in any case: who has none is no client of MCP.
fn client(context: &RequestContext<RoleServer>) -> Option<String> {
    let name = context
        .client_info()
        .map(|client| one_line(&client.name, NAME_CHARS))
        .filter(|client| !client.is_empty());
    Some(name.unwrap_or_else(|| "unnamed".to_owned()))
}

/// The caller's correlation id and idempotency key as they were sent; the core says whether they
/// can be used.
fn ids(meta: &RequestMetaObject) -> Result<(Option<String>, Option<String>), Fault> {
    let id = |name: &str, field| match meta.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(other) => Err(Fault::invalid(
            field,
            format!("`_meta.{name}` must be a string, not {}", describe(other)),
            format!("send `{name}` in quotes, or leave it out"),
            "a string",
        )),
    };
    Ok((
        id(CORRELATION_ID, "correlation_id")?,
        id("idempotencyKey", "idempotency_key")?,
    ))
}
