//! JSON-RPC messages as lines over a pair of byte streams.
//!
//! It exists beside rmcp's own transport of this kind for what that one does not do: every line
//! that is no message gets one error, under its id where it has one; a client that does not read
//! its answers is not read from; ids may come again; the end of the stream, or a write that fails,
//! cancels what is in flight at once; a blocked write cannot hold up the end of the connection; a
//! stray notification before the first request is ignored instead of ending the server. It does
//! not know what a message means, beyond the opening of a connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData, GetExtensions,
    GetMeta, JsonRpcMessage, JsonRpcRequest, ProtocolVersion, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::RoleServer;
use rmcp::transport::Transport;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::arguments;
use crate::in_flight::InFlight;
use crate::line_scan::{KEPT, LineScan};
use crate::window::{Kind, Window};
use crate::written::WrittenNumbers;

/// Deepest nesting of arrays and objects in a message. The parser itself would stop at 128.
const MAX_DEPTH: usize = 64;

/// Most values in a message: a line of 8 MiB full of zeros would take a hundred times its size
/// when parsed.
const MAX_VALUES: usize = 100_000;

/// Size of the read buffer, and the most of the line buffer that is kept for the next line.
const BUFFER: usize = 64 * 1024;

/// What a value of a message takes in memory beside its text, bytes, about.
const VALUE: usize = 100;

/// Messages that are handed on without a pause. A read buffer holds a thousand, and those who
/// answer them must have their turn.
const IN_A_ROW: u32 = 32;

/// How long a client with all its calls in flight is not read from before the next call is
/// refused: some of them may be over in a moment.
const FULL: Duration = Duration::from_millis(100);

/// How long a client that has closed its end may leave its answers unread.
const HUNG_UP: Duration = Duration::from_secs(1);

/// How long a write may take once the connection is over.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// JSON-RPC has no code for it; that of the Language Server Protocol is the usual one.
const NOT_INITIALIZED: ErrorCode = ErrorCode(-32002);

/// Ends when the client has closed its end, also while nothing is read.
pub(crate) type HangUp = Shared<BoxFuture<'static, ()>>;

/// A message to hand on, the answer to what is none, or neither for a line to be ignored.
type Taken = Result<Option<ClientJsonRpcMessage>, Box<Refused>>;

/// A line that is answered here.
struct Refused {
    id: Option<RequestId>,
    error: ErrorData,
}

impl Refused {
    fn new(id: Option<RequestId>, code: ErrorCode, message: impl Into<String>) -> Box<Self> {
        let error = ErrorData::new(code, message.into(), None);
        Box::new(Self { id, error })
    }
}

/// That a call is one too many, in the extensions of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneTooMany;

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
    in_flight: InFlight,
    window: Window,
    /// Messages handed on since the last pause.
    in_a_row: u32,
    /// Since when there is no room for a call.
    full_since: Option<Instant>,
    hang_up: HangUp,
    /// Since when the client is known to have closed its end while nothing is read.
    hung_up_since: Option<Instant>,
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
        hang_up: HangUp,
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
            in_flight: InFlight::default(),
            window: Window::default(),
            in_a_row: 0,
            full_since: None,
            hang_up,
            hung_up_since: None,
            connection,
            closed: CancellationToken::new(),
        }
    }

    /// Waits until the next line may be read; false when the client is gone meanwhile. Cancel-safe.
    async fn may_read(&mut self) -> bool {
        if self.in_a_row >= IN_A_ROW {
            tokio::task::yield_now().await;
            self.in_a_row = 0;
        }
        let ready = async {
            if let Some(answer) = self.answer.as_mut() {
                let sent = answer.await;
                self.answer = None;
                sent?;
            }
            if self.window.has_room(Kind::Call) {
                self.full_since = None;
            } else {
                let since = *self.full_since.get_or_insert_with(Instant::now);
                let _ = timeout_at(since + FULL, self.window.room(Kind::Call)).await;
            }
            self.window.room(Kind::Passing).await;
            Ok::<_, io::Error>(())
        };
        let gone = async {
            self.hang_up.clone().await;
            let since = *self.hung_up_since.get_or_insert_with(Instant::now);
            sleep_until(since + HUNG_UP).await;
        };
        let ready = tokio::select! {
            biased;
            ready = ready => ready.is_ok(),
            () = gone => false,
        };
        self.hung_up_since = None;
        ready
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

    /// Takes the line that has been read.
    fn take_line(&mut self) -> Taken {
        let scan = std::mem::take(&mut self.scan);
        let mut line = std::mem::take(&mut self.line);
        let taken = self.parse(&line, &scan).and_then(|message| match message {
            Some(message) => self.admit(message, &line, &scan),
            None => Ok(None),
        });
        line.clear();
        line.shrink_to(BUFFER);
        self.line = line;
        taken.map_err(|mut refused| {
            let bytes = scan.bytes;
            let code = refused.error.code.0;
            tracing::warn!(bytes, code, "a line of the client was refused");
            // Under the id of a request that goes on, this would pass for its answer.
            if let Some(id) = refused.id.take_if(|id| self.in_flight.contains(id)) {
                refused.error.data = Some(json!({ "requestId": id }));
            }
            refused
        })
    }

    /// Parses a line. Notifications and answers are not answered, whatever is wrong with them: an
    /// answer may be an echo of our own. Blank lines are no messages.
    fn parse(&self, line: &[u8], scan: &LineScan) -> Taken {
        let refuse = |code, message: String| Err(Refused::new(scan.request_id(), code, message));
        let silent = scan.is_answer() || scan.is_notification();
        let excess = if scan.bytes > self.max_bytes {
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
        match excess {
            Some(_) if silent => return Ok(None),
            Some(excess) => return refuse(ErrorCode::INVALID_REQUEST, excess),
            None => {}
        }
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(None);
        }
        // The parser's own words may repeat the client's text, so they go nowhere.
        match serde_json::from_slice(line) {
            Ok(message) => Ok(Some(message)),
            Err(error) if !error.is_data() => {
                let message = "not JSON, or a number in it is beyond all range";
                refuse(ErrorCode::PARSE_ERROR, message.to_owned())
            }
            Err(_) if silent => Ok(None),
            Err(_) => {
                let message = if line.starts_with(b"[") {
                    "batches are not taken: send each message as a line of its own"
                } else if scan.has_bad_id() {
                    BAD_ID
                } else {
                    "not a JSON-RPC 2.0 message"
                };
                refuse(ErrorCode::INVALID_REQUEST, message.to_owned())
            }
        }
    }

    /// Takes a message, unless it has no place here.
    fn admit(&mut self, message: ClientJsonRpcMessage, line: &[u8], scan: &LineScan) -> Taken {
        match message {
            JsonRpcMessage::Request(request) => self.admit_request(request, line, scan),
            // Up to the request that opens the connection, rmcp takes requests only.
            _ if !self.opened => {
                tracing::debug!("ignored a message that came before the first request");
                Ok(None)
            }
            JsonRpcMessage::Notification(mut message) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &mut message.notification
                {
                    let id = cancelled.params.request_id.take();
                    let Some(id) = id.and_then(|id| self.in_flight.cancel(&id)) else {
                        return Ok(None);
                    };
                    cancelled.params.request_id = Some(id);
                }
                Ok(Some(JsonRpcMessage::Notification(message)))
            }
            message => Ok(Some(message)),
        }
    }

    fn admit_request(
        &mut self,
        mut request: JsonRpcRequest<ClientRequest>,
        line: &[u8],
        scan: &LineScan,
    ) -> Taken {
        let id = request.id;
        let invalid = |id, message| Err(Refused::new(id, ErrorCode::INVALID_REQUEST, message));
        if matches!(&id, RequestId::String(id) if id.len() > KEPT) {
            return invalid(None, BAD_ID.to_owned());
        }
        if self.in_flight.contains(&id) {
            let message = "another request of this id is not answered yet: give each its own";
            return invalid(Some(id), message.to_owned());
        }
        if !self.opened {
            match opening(&request.request) {
                Ok(opens) => self.opened = opens,
                Err((code, message)) => return Err(Refused::new(Some(id), code, message)),
            }
        }
        let is_call = matches!(&request.request, ClientRequest::CallToolRequest(_));
        let extensions = request.request.extensions_mut();
        let mut kind = Kind::Passing;
        if is_call {
            extensions.insert(WrittenNumbers::of_call(line, &arguments::BUILT));
            if self.window.has_room(Kind::Call) {
                kind = Kind::Call;
            } else {
                extensions.insert(OneTooMany);
            }
        }
        let load = Arc::new(self.window.take(kind, scan.bytes + scan.values * VALUE));
        // Dropped with the request by whoever works on it.
        extensions.insert(Arc::clone(&load));
        request.id = self.in_flight.begin(id, load);
        Ok(Some(JsonRpcMessage::Request(request)))
    }

    /// Writes a line; it counts from now on, and not only once it is its turn.
    fn write(&self, mut line: Vec<u8>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        line.push(b'\n');
        let load = self.window.take(Kind::Passing, line.len());
        let writer = Arc::clone(&self.writer);
        let connection = self.connection.clone();
        let closed = self.closed.clone();
        async move {
            let _load = load;
            let mut writer = writer.lock().await;
            let Some(stream) = writer.as_mut() else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let written = async {
                stream.write_all(&line).await?;
                stream.flush().await
            };
            let late = async {
                connection.cancelled().await;
                sleep(LAST_WRITE).await;
            };
            let written = tokio::select! {
                biased;
                () = closed.cancelled() => Err(io::ErrorKind::NotConnected.into()),
                written = written => written,
                () = late => Err(io::ErrorKind::TimedOut.into()),
            };
            if written.is_err() {
                // Part of the line may be out: nothing may follow it.
                *writer = None;
                connection.cancel();
            }
            written
        }
    }
}

const BAD_ID: &str = "the id must be a string of at most 256 bytes or an integer of 64 bits";

/// Whether a request opens the connection, or is taken before it is open; otherwise what to do
/// first.
fn opening(request: &ClientRequest) -> Result<bool, (ErrorCode, &'static str)> {
    let meta = match request {
        ClientRequest::InitializeRequest(_) => return Ok(true),
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => return Ok(false),
        ClientRequest::CustomRequest(request) if request.method == "initialize" => {
            let message = "initialize has malformed parameters: it needs `protocolVersion`, \
                           `capabilities` and `clientInfo`";
            return Err((ErrorCode::INVALID_PARAMS, message));
        }
        request => request.get_meta(),
    };
    if !meta.contains_key("io.modelcontextprotocol/protocolVersion") {
        let message = "initialize first: send `initialize`, wait for its result, and send \
                       `notifications/initialized`";
        return Err((NOT_INITIALIZED, message));
    }
    // rmcp tells what else is missing.
    let complete = meta
        .missing_required_keys(&ProtocolVersion::V_2026_07_28)
        .is_empty();
    let known = meta
        .protocol_version()
        .is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(&version));
    Ok(complete && known)
}

impl<R, W> Transport<RoleServer> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let line = self
            .in_flight
            .address(&mut message)
            .then(|| serde_json::to_vec(&message));
        let written = line.map(|line| line.map(|line| self.write(line)));
        async move {
            match written {
                Some(written) => written?.await,
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if !self.may_read().await || !matches!(self.read_line().await, Ok(true)) {
                self.connection.cancel();
                return None;
            }
            match self.take_line() {
                Ok(Some(message)) => {
                    self.in_a_row += 1;
                    return Some(message);
                }
                Ok(None) => {}
                Err(refused) => {
                    // Unlike that of rmcp, an error without an id says so (JSON-RPC 2.0, 5).
                    let Refused { id, error } = *refused;
                    let line = json!({ "jsonrpc": "2.0", "id": id, "error": error });
                    self.answer = Some(self.write(line.to_string().into_bytes()).boxed());
                }
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
