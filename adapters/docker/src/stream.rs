//! The agent's stream: what is attached to the container's standard input and output.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bytes::{Buf, Bytes};
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) struct Attached {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// What came and was not read yet.
    rest: Bytes,
}

impl Attached {
    pub(crate) fn new(attached: AttachContainerResults) -> Self {
        Self {
            output: attached.output,
            input: attached.input,
            rest: Bytes::new(),
        }
    }
}

impl AsyncRead for Attached {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.output.as_mut().poll_next(cx)) {
                // The agent writes nothing to standard error.
                Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => {
                    self.rest = message;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let taken = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..taken]);
        self.rest.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Attached {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(cx)
    }
}
