//! Requests to an engine's socket, each on a connection of its own: dropped, the engine knows that nobody waits.

use std::io;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

/// Longest document, and longest line of an answer, bytes.
const LONGEST: usize = 16 << 20;

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Socket(io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// What the engine says.
    #[error("{0}")]
    Refused(String),
    #[error("the answer is not what the API says: {0}")]
    Answer(String),
}

/// The body of an answer.
pub(crate) struct Answer {
    body: Incoming,
    begun: BytesMut,
    connection: AbortHandle,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[derive(Deserialize)]
struct Told {
    message: String,
}

pub(crate) async fn get(socket: &Path, path: &str) -> Result<Answer, Fault> {
    send(socket, Method::GET, path, Bytes::new()).await
}

pub(crate) async fn post(socket: &Path, path: &str, archive: Vec<u8>) -> Result<Answer, Fault> {
    send(socket, Method::POST, path, archive.into()).await
}

async fn send(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Answer, Fault> {
    let stream = UnixStream::connect(socket).await.map_err(Fault::Socket)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection).abort_handle();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "engine")
        .header(CONTENT_TYPE, "application/x-tar")
        .body(Full::new(body))
        .map_err(|error| Fault::Answer(error.to_string()))?;
    let (status, body) = match sender.send_request(request).await {
        Ok(answer) => (answer.status(), answer.into_body()),
        Err(error) => {
            connection.abort();
            return Err(error.into());
        }
    };
    let answer = Answer {
        body,
        begun: BytesMut::new(),
        connection,
    };
    if status.is_success() {
        return Ok(answer);
    }
    let bytes = answer.whole().await?;
    let told = serde_json::from_slice::<Told>(&bytes).map(|told| told.message);
    Err(Fault::Refused(told.unwrap_or_else(|_| status.to_string())))
}

impl Answer {
    /// The next bytes; nothing at the end.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, Fault> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The next line that is not empty; nothing at the end.
    pub(crate) async fn line(&mut self) -> Result<Option<Bytes>, Fault> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.begun[seen..].iter().position(|byte| *byte == b'\n') {
                let line = self.begun.split_to(seen + end + 1).freeze();
                seen = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            seen = self.begun.len();
            if seen > LONGEST {
                return Err(Fault::Answer(format!(
                    "a line of more than {LONGEST} bytes"
                )));
            }
            match self.part().await? {
                Some(part) => self.begun.extend_from_slice(&part),
                None if self.begun.trim_ascii().is_empty() => return Ok(None),
                None => return Ok(Some(self.begun.split().freeze())),
            }
        }
    }

    /// A document.
    pub(crate) async fn json<T: DeserializeOwned>(self) -> Result<T, Fault> {
        let bytes = self.whole().await?;
        serde_json::from_slice(&bytes).map_err(|error| Fault::Answer(error.to_string()))
    }

    async fn whole(mut self) -> Result<BytesMut, Fault> {
        while let Some(part) = self.part().await? {
            if self.begun.len() + part.len() > LONGEST {
                return Err(Fault::Answer(format!("more than {LONGEST} bytes")));
            }
            self.begun.extend_from_slice(&part);
        }
        Ok(std::mem::take(&mut self.begun))
    }
}
