//! The agent's stream: the attached standard output in the frames of Docker's `attach`, which libpod
//! has as well (stream, three zeros, length as 4 bytes, payload), and the plain standard input.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const STANDARD_OUTPUT: u8 = 1;

/// A connection whose output comes in frames.
pub(crate) struct Attached<S> {
    connection: S,
    header: [u8; 8],
    /// How much of the header has come.
    filled: usize,
    /// How much of the payload is still to come.
    payload: usize,
}

impl<S> Attached<S> {
    pub(crate) fn new(connection: S) -> Self {
        Self {
            connection,
            header: [0; 8],
            filled: 0,
            payload: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Attached<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.payload == 0 {
                let mut rest = ReadBuf::new(&mut this.header[this.filled..]);
                ready!(Pin::new(&mut this.connection).poll_read(cx, &mut rest))?;
                let came = rest.filled().len();
                if came == 0 {
                    // The end, unless it is one in the middle of a header.
                    return Poll::Ready(match this.filled {
                        0 => Ok(()),
                        _ => Err(io::ErrorKind::UnexpectedEof.into()),
                    });
                }
                this.filled += came;
                if this.filled == this.header.len() {
                    this.filled = 0;
                    let [_, _, _, _, a, b, c, d] = this.header;
                    this.payload = u32::from_be_bytes([a, b, c, d]) as usize;
                }
                continue;
            }
            if this.header[0] == STANDARD_OUTPUT {
                let most = this.payload.min(buffer.remaining());
                let part = buffer.initialize_unfilled_to(most);
                let came = ready!(part_of(&mut this.connection, cx, part))?;
                buffer.advance(came);
                this.payload -= came;
                return Poll::Ready(Ok(()));
            }
            // The agent writes nothing else: what the engine says there is no business of its reader.
            let mut nowhere = [0; 4096];
            let most = this.payload.min(nowhere.len());
            this.payload -= ready!(part_of(&mut this.connection, cx, &mut nowhere[..most]))?;
        }
    }
}

/// Some bytes of a payload, which does not end here.
fn part_of<S: AsyncRead + Unpin>(
    connection: &mut S,
    cx: &mut Context<'_>,
    bytes: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut part = ReadBuf::new(bytes);
    ready!(Pin::new(connection).poll_read(cx, &mut part))?;
    Poll::Ready(match part.filled().len() {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        came => Ok(came),
    })
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Attached<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn frame(stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[stream, 0, 0, 0], &length[..], payload].concat()
    }

    async fn read(bytes: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let (mut far, near) = tokio::io::duplex(64);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            for part in bytes.chunks(piece) {
                far.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut all = Vec::new();
        Attached::new(near).read_to_end(&mut all).await.map(|_| all)
    }

    #[tokio::test]
    async fn only_standard_output_comes_whatever_the_pieces() {
        let text: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let sent = [
            frame(1, &text[..5000]),
            frame(2, b"not this"),
            frame(1, b""),
            frame(9, &[7; 5000]),
            frame(1, &text[5000..]),
        ]
        .concat();
        for piece in [1, 7, 64, 20_000] {
            assert_eq!(read(&sent, piece).await.unwrap(), text, "{piece}");
        }
        assert_eq!(read(b"", 1).await.unwrap(), b"");
    }

    #[tokio::test]
    async fn an_end_in_the_middle_is_an_error() {
        for sent in [
            &frame(1, b"abc")[..10],
            &frame(2, b"abc")[..10],
            &frame(1, b"abc")[..3],
        ] {
            let told = read(sent, 64).await.unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::UnexpectedEof);
        }
        // A length is believed and nothing is made for it.
        let told = read(&[1, 0, 0, 0, 255, 255, 255, 255, 1], 64).await;
        assert_eq!(told.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
