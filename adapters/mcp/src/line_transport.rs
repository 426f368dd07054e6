//! JSON-RPC messages as lines over a pair of byte streams.
//!
//! It exists beside rmcp's own transport of this kind for four things that one does not do: every
//! request gets an answer, also one that is too long or too deep to be parsed; the end of the
//! stream, or a write that fails, cancels what is in flight at once; a blocked write cannot hold
//! up the end of the connection; a stray notification before the first request is ignored instead
//! of ending the server. It does not know what a message means.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, GetMeta, JsonRpcMessage,
    ProtocolVersion, ServerJsonRpcMessage,
};
use rmcp::service::RoleServer;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::line_scan::LineScan;

/// Deepest nesting of arrays and objects in a message. The parser itself would stop at 128.
const MAX_DEPTH: usize = 64;

/// Most values in a message: a line of 8 MiB full of zeros would take a hundred times its size
/// when parsed.
const MAX_VALUES: usize = 100_000;

/// Size of the read buffer, and the most of the line buffer that is kept for the next line.
const BUFFER: usize = 64 * 1024;

/// A message to hand on, an answer to what is none, or neither for a line to be ignored.
type Taken = Result<Option<ClientJsonRpcMessage>, Box<ServerJsonRpcMessage>>;

/// A connection to one client.
pub(crate) struct LineTransport<R, W> {
    reader: BufReader<R>,
    writer: Arc<Mutex<Option<W>>>,
    max_bytes: usize,
    line: Vec<u8>,
    scan: LineScan,
    /// An answer of the transport itself that is being sent.
    answer: Option<BoxFuture<'static, io::Result<()>>>,
    /// Whether a request that opens the connection has come.
    opened: bool,
    /// Cancelled when the client is gone.
    connection: CancellationToken,
    /// Cancelled when nothing more may be written.
    closed: CancellationToken,
}

impl<R, W> LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// A transport that cancels `connection` when the client is gone.
    pub(crate) fn new(
        reader: R,
        writer: W,
        max_bytes: usize,
        connection: CancellationToken,
    ) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER, reader),
            writer: Arc::new(Mutex::new(Some(writer))),
            max_bytes,
            line: Vec::new(),
            scan: LineScan::default(),
            answer: None,
            opened: false,
            connection,
            closed: CancellationToken::new(),
        }
    }

    /// Reads up to the end of a line; false at the end of the stream. Cancel-safe: what was
    /// consumed is in `line` and `scan`.
    async fn read_line(&mut self) -> io::Result<bool> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(false);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            self.scan.feed(piece);
            if self.scan.bytes <= self.max_bytes {
                self.line.extend_from_slice(piece);
            } else {
                self.line = Vec::new();
            }
            let consumed = piece.len() + usize::from(end.is_some());
            self.reader.consume(consumed);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Parses the line that has been read.
    fn take_message(&mut self) -> Taken {
        let scan = std::mem::take(&mut self.scan);
        let fault = if scan.bytes > self.max_bytes {
            Some(format!(
                "the message of {} bytes is longer than the {} bytes that are taken",
                scan.bytes, self.max_bytes
            ))
        } else if scan.deepest > MAX_DEPTH {
            Some(format!("the message nests deeper than {MAX_DEPTH} levels"))
        } else if scan.values > MAX_VALUES {
            Some(format!("the message holds more than {MAX_VALUES} values"))
        } else {
            None
        };
        if let Some(fault) = fault {
            self.line = Vec::new();
            return self.refuse(&scan, ErrorCode::INVALID_REQUEST, fault, false);
        }
        let line = self
            .line
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(&self.line);
        let parsed = if line.trim_ascii().is_empty() {
            Ok(None)
        } else {
            serde_json::from_slice(line).map(Some)
        };
        self.line.clear();
        self.line.shrink_to(BUFFER);
        // The parser's own words may repeat the client's text, so they go nowhere.
        match parsed {
            Ok(message) => Ok(message),
            Err(error) if error.is_data() => {
                let fault = "not a JSON-RPC 2.0 message".to_owned();
                self.refuse(&scan, ErrorCode::INVALID_REQUEST, fault, true)
            }
            Err(_) => self.refuse(&scan, ErrorCode::PARSE_ERROR, "not JSON".to_owned(), false),
        }
    }

    /// Answers a request under its own id. Without one, only well-formed JSON that is no
    /// notification gets an answer: anything else may be an echo of our own.
    fn refuse(&self, scan: &LineScan, code: ErrorCode, fault: String, well_formed: bool) -> Taken {
        let id = scan.request_id();
        tracing::warn!(
            bytes = scan.bytes,
            code = code.0,
            "a line of the client was refused"
        );
        if id.is_none() && (!well_formed || scan.has_method()) {
            return Ok(None);
        }
        let error = ErrorData::new(code, Cow::Owned(fault), None);
        Err(Box::new(JsonRpcMessage::error(error, id)))
    }

    /// Whether the message may be handed on. Up to the request that opens the connection, rmcp
    /// takes requests only.
    fn admits(&mut self, message: &ClientJsonRpcMessage) -> bool {
        if self.opened {
            return true;
        }
        let JsonRpcMessage::Request(request) = message else {
            tracing::debug!("ignored a message that came before the first request");
            return false;
        };
        self.opened = match &request.request {
            ClientRequest::InitializeRequest(_) => true,
            ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
            request => {
                let meta = request.get_meta();
                meta.missing_required_keys(&ProtocolVersion::V_2026_07_28)
                    .is_empty()
                    && meta
                        .protocol_version()
                        .is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(&version))
            }
        };
        true
    }
}

impl<R, W> Transport<RoleServer> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let writer = Arc::clone(&self.writer);
        let connection = self.connection.clone();
        let closed = self.closed.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(stream) = writer.as_mut() else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let written = async {
                stream.write_all(&line).await?;
                stream.flush().await
            };
            let written = tokio::select! {
                biased;
                () = closed.cancelled() => Err(io::ErrorKind::NotConnected.into()),
                written = written => written,
            };
            if written.is_err() {
                // Part of the line may be out: nothing may follow it.
                *writer = None;
                connection.cancel();
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(answer) = self.answer.as_mut() {
                let sent = answer.await;
                self.answer = None;
                sent.ok()?;
            }
            if !matches!(self.read_line().await, Ok(true)) {
                self.connection.cancel();
                return None;
            }
            match self.take_message() {
                Ok(Some(message)) if self.admits(&message) => return Some(message),
                Ok(_) => {}
                Err(answer) => self.answer = Some(self.send(*answer).boxed()),
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.closed.cancel();
        // Dropping ends it. A socket is not shut down: a launcher may still hold it.
        *self.writer.lock().await = None;
        Ok(())
    }
}
