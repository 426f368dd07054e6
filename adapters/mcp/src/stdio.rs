//! Standard input and output as byte streams whose reads and writes hold up nobody's end.
//!
//! Pipes (most clients) are opened anew without blocking, sockets (Node.js clients) are switched to
//! it: their description is ours alone. Everything else, such as a terminal or a file, gets a
//! thread of its own, which the end of the process does not wait for.
//! It does not guard the two streams against other users in the process: there must be none.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use rustix::fs::FileType;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::line_transport::HangUp;

/// Bytes in flight between the server and a thread.
const BUFFER: usize = 64 * 1024;

/// Longest wait for a thread to write what is left.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Both streams.
pub(crate) struct Stdio {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) hang_up: HangUp,
    pub(crate) last_writes: LastWrites,
}

/// Waits for what was handed to a writing thread.
pub(crate) struct LastWrites(Option<oneshot::Receiver<()>>);

impl LastWrites {
    /// Returns when everything is written, or after 2 s when the client does not read.
    pub(crate) async fn wait(self) {
        if let Some(written) = self.0 {
            let _ = tokio::time::timeout(LAST_WRITES, written).await;
        }
    }
}

impl Stdio {
    /// Takes over standard input and output. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    ///
    /// When a descriptor cannot be used, or no thread can be started.
    pub(crate) fn open() -> io::Result<Self> {
        let (reader, hang_up) = reader()?;
        let (writer, last_writes) = writer()?;
        Ok(Self {
            reader,
            writer,
            hang_up,
            last_writes,
        })
    }
}

fn reader() -> io::Result<(Box<dyn AsyncRead + Send + Unpin>, HangUp)> {
    let stdin = io::stdin();
    match kind(stdin.as_fd())? {
        // A pipe that belongs to another user cannot be opened anew; it gets a thread.
        FileType::Fifo => {
            let open = || pipe::OpenOptions::new().open_receiver("/proc/self/fd/0");
            if let (Ok(pipe), Ok(watched)) = (open(), open()) {
                // The interest is in neither reading nor urgent data: only a close ends it.
                let closed = async move {
                    let _ = watched.ready(Interest::PRIORITY).await;
                };
                return Ok((Box::new(pipe), closed.boxed().shared()));
            }
        }
        FileType::Socket => {
            let watched = socket(stdin.as_fd())?;
            let closed = async move {
                let _ = watched.ready(Interest::PRIORITY).await;
            };
            return Ok((Box::new(socket(stdin.as_fd())?), closed.boxed().shared()));
        }
        _ => {}
    }
    let (near, mut far) = tokio::io::duplex(BUFFER);
    std::thread::Builder::new()
        .name("mcp-stdin".to_owned())
        .spawn(move || {
            let mut buffer = vec![0; BUFFER];
            loop {
                match io::stdin().read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        if block_on(far.write_all(&buffer[..count])).is_err() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })?;
    Ok((Box::new(near), std::future::pending().boxed().shared()))
}

fn writer() -> io::Result<(Box<dyn AsyncWrite + Send + Unpin>, LastWrites)> {
    let stdout = io::stdout();
    match kind(stdout.as_fd())? {
        FileType::Fifo => {
            if let Ok(pipe) = pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
                return Ok((Box::new(pipe), LastWrites(None)));
            }
        }
        FileType::Socket => {
            return Ok((Box::new(socket(stdout.as_fd())?), LastWrites(None)));
        }
        _ => {}
    }
    let (near, mut far) = tokio::io::duplex(BUFFER);
    let (done, written) = oneshot::channel();
    std::thread::Builder::new()
        .name("mcp-stdout".to_owned())
        .spawn(move || {
            let mut stdout = io::stdout().lock();
            let mut buffer = vec![0; BUFFER];
            while let Ok(count @ 1..) = block_on(far.read(&mut buffer)) {
                if stdout
                    .write_all(&buffer[..count])
                    .and_then(|()| stdout.flush())
                    .is_err()
                {
                    break;
                }
            }
            let _ = done.send(());
        })?;
    Ok((Box::new(near), LastWrites(Some(written))))
}

fn kind(stream: BorrowedFd<'_>) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(stream)?.st_mode))
}

/// A stream socket of any family; only reads and writes are made of it.
fn socket(stream: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(stream.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
