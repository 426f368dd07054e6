//! HTTP on the engine's socket: podman's reference of the libpod API. A connection for each request,
//! so that an engine that starts again, or one that systemd starts when it is asked, needs no care.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mcp_forge_ports::{PortError, PortErrorKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Longest answer that is read, bytes.
const MAX_ANSWER: usize = 16 << 20;

/// The version that is spoken; later engines take it.
const VERSION: &str = "v4.0.0";

/// Header that only Podman sends.
const LIBPOD_VERSION: &str = "libpod-api-version";

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Socket(io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("{message} (status {status})")]
    Refused { status: u16, message: String },
    #[error("the answer is not what the libpod API says: {0}")]
    Answer(String),
    #[error("no answer for {} s", ANSWER.as_secs())]
    TimedOut,
}

impl Fault {
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// As the port tells it: what was attempted, and why it failed.
    pub(crate) fn of(self, attempt: impl Into<String>) -> PortError {
        let start = "start it (`systemctl --user start podman.socket`, as root without `--user`), or \
                     name its socket in CONTAINER_HOST";
        let (kind, hint) = match &self {
            Self::Refused { status: 404, .. } => (PortErrorKind::NotFound, None),
            Self::Refused { status: 409, .. } => (PortErrorKind::AlreadyExists, None),
            Self::Refused { status: 400, .. } => (
                PortErrorKind::Unsupported,
                Some("see what the engine says; `mcp-forge doctor` tells its version"),
            ),
            Self::Refused { .. } => (
                PortErrorKind::Internal,
                Some("see what the engine says, and its log (`journalctl -t podman`)"),
            ),
            Self::Socket(error) if error.kind() == io::ErrorKind::PermissionDenied => (
                PortErrorKind::Denied,
                Some("run your own engine (`systemctl --user start podman.socket`)"),
            ),
            Self::Socket(_) | Self::Http(_) => (PortErrorKind::Unreachable, Some(start)),
            Self::TimedOut => (
                PortErrorKind::TimedOut,
                Some("see what the engine does (`podman ps`)"),
            ),
            Self::Answer(_) => (
                PortErrorKind::Unsupported,
                Some("name the socket of Podman 4.0 or newer in CONTAINER_HOST"),
            ),
        };
        let attempt = attempt.into();
        let attempt = match &self {
            Self::Socket(error) => format!("{attempt}: {error}"),
            _ => attempt,
        };
        let failed = PortError::new(kind, attempt).with_source(self);
        match hint {
            Some(hint) => failed.with_hint(hint),
            None => failed,
        }
    }
}

/// What is sent along.
pub(crate) enum Body {
    None,
    /// Nothing yet: the connection is to become a stream.
    Stream,
    Json(String),
    Tar(Vec<u8>),
}

/// The engine behind a socket.
pub(crate) struct Client {
    pub(crate) socket: PathBuf,
}

#[derive(Deserialize)]
struct Told {
    message: String,
}

impl Client {
    /// The version of the libpod API that is spoken there; nothing when it is none.
    pub(crate) async fn ping(&self) -> Result<Option<String>, Fault> {
        let ask = self.send(Method::GET, "/libpod/_ping", Body::None);
        let answer = in_time(ask).await?;
        let version = answer.headers().get(LIBPOD_VERSION);
        Ok(version
            .and_then(|version| version.to_str().ok())
            .map(str::to_owned))
    }

    /// An answer that says something.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T, Fault> {
        in_time(self.patient_json(method, path, body)).await
    }

    /// The same, however long it takes.
    pub(crate) async fn patient_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<T, Fault> {
        let answer = self.libpod(method, path, body).await?;
        let bytes = whole(answer.into_body()).await?;
        serde_json::from_slice(&bytes).map_err(|error| Fault::Answer(format!("{path}: {error}")))
    }

    /// An answer that says no more than that it was done.
    pub(crate) async fn done(&self, method: Method, path: &str) -> Result<(), Fault> {
        let ask = async {
            let answer = self.libpod(method, path, Body::None).await?;
            whole(answer.into_body()).await
        };
        in_time(ask).await.map(drop)
    }

    /// A connection that is a stream from now on.
    pub(crate) async fn upgrade(&self, path: &str) -> Result<TokioIo<Upgraded>, Fault> {
        let ask = async {
            let answer = self.libpod(Method::POST, path, Body::Stream).await?;
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(Fault::Answer(format!("{path}: no stream")));
            }
            Ok(hyper::upgrade::on(answer).await?)
        };
        in_time(ask).await.map(TokioIo::new)
    }

    async fn libpod(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Fault> {
        let path = format!("/{VERSION}/libpod/{path}");
        let answer = self.send(method, &path, body).await?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(answer);
        }
        let bytes = whole(answer.into_body()).await?;
        let message = match serde_json::from_slice::<Told>(&bytes) {
            Ok(told) => told.message,
            Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
        };
        let line = message.lines().next().unwrap_or_default();
        Err(Fault::Refused {
            status: status.as_u16(),
            message: line.chars().take(500).collect(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Fault> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(Fault::Socket)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer, or with the stream that it becomes.
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "podman");
        let bytes = match body {
            Body::None => Bytes::new(),
            Body::Stream => {
                request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "tcp");
                Bytes::new()
            }
            Body::Json(text) => {
                request = request.header(CONTENT_TYPE, "application/json");
                text.into()
            }
            Body::Tar(bytes) => {
                request = request.header(CONTENT_TYPE, "application/x-tar");
                bytes.into()
            }
        };
        let request = request
            .body(Full::new(bytes))
            .map_err(|error| Fault::Answer(error.to_string()))?;
        Ok(sender.send_request(request).await?)
    }
}

async fn in_time<T>(ask: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    tokio::time::timeout(ANSWER, ask)
        .await
        .unwrap_or(Err(Fault::TimedOut))
}

async fn whole(body: Incoming) -> Result<Bytes, Fault> {
    let read = Limited::new(body, MAX_ANSWER).collect().await;
    read.map(|all| all.to_bytes())
        .map_err(|error| Fault::Answer(error.to_string()))
}
