//! A client that writes lines and reads lines, and takes nothing but JSON-RPC messages.

use std::collections::VecDeque;
use std::time::Duration;

use mcp_forge_mcp::{McpServer, ServeError, serve};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing here takes longer, also on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct RawClient {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    seen: VecDeque<Value>,
    next_id: i64,
    pub(crate) shutdown: CancellationToken,
    pub(crate) serving: JoinHandle<Result<(), ServeError>>,
}

impl RawClient {
    /// A connection on which nothing was said yet.
    pub(crate) fn connect(server: McpServer) -> Self {
        Self::connect_with(server, 64 * 1024)
    }

    pub(crate) fn connect_with(server: McpServer, buffer: usize) -> Self {
        let (near, far) = tokio::io::duplex(buffer);
        let (reader, writer) = tokio::io::split(far);
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(server, reader, writer, shutdown.clone()));
        let (reader, writer) = tokio::io::split(near);
        Self {
            lines: BufReader::new(reader).lines(),
            writer,
            seen: VecDeque::new(),
            next_id: 1,
            shutdown,
            serving,
        }
    }

    /// A connection that was opened with `initialize`.
    pub(crate) async fn initialized(server: McpServer) -> Self {
        let mut client = Self::connect(server);
        let answer = client.initialize("2025-11-25").await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        client
    }

    pub(crate) async fn initialize(&mut self, version: &str) -> Value {
        let params = json!({
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "raw-client", "version": "1"},
        });
        let answer = self.request("initialize", params).await;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        answer
    }

    pub(crate) async fn send_line(&mut self, line: &[u8]) {
        self.writer.write_all(line).await.unwrap();
        self.writer.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn send_unfinished(&mut self, part: &[u8]) {
        self.writer.write_all(part).await.unwrap();
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes()).await;
    }

    /// Sends a request and gives its id.
    pub(crate) async fn start(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start(method, params).await;
        self.answer(id).await
    }

    pub(crate) async fn call(&mut self, arguments: Value) -> Value {
        self.request(
            "tools/call",
            json!({"name": "execute_python", "arguments": arguments}),
        )
        .await
    }

    /// Waits for the answer to a request; what else comes is kept for [`RawClient::next`].
    pub(crate) async fn answer(&mut self, id: i64) -> Value {
        let mut others = VecDeque::new();
        loop {
            let message = self.next().await.expect("an answer");
            if message["id"] == id {
                self.seen = others;
                return message;
            }
            others.push_back(message);
        }
    }

    /// The next message; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        if let Some(message) = self.seen.pop_front() {
            return Some(message);
        }
        let line = tokio::time::timeout(DEADLINE, self.lines.next_line())
            .await
            .expect("a line in time")
            .unwrap()?;
        let message: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        let kinds = ["result", "error", "method"].map(|kind| message.get(kind).is_some());
        assert_eq!(kinds.iter().filter(|there| **there).count(), 1, "{line}");
        Some(message)
    }

    /// Goes away; gives what the server had still to say, after it has ended.
    pub(crate) async fn disconnect(mut self) -> Vec<Value> {
        self.writer.shutdown().await.unwrap();
        self.drain().await
    }

    /// Everything up to the end of the stream, after the server has ended.
    pub(crate) async fn drain(mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(message) = self.next().await {
            rest.push(message);
        }
        let ended = tokio::time::timeout(DEADLINE, self.serving)
            .await
            .expect("an end in time");
        ended.expect("no panic").expect("no error");
        rest
    }
}

/// `_meta` of a request in the revision without sessions.
pub(crate) fn stateless_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "stateless-client", "version": "1"},
    })
}
