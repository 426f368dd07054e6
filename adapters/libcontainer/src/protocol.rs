//! Messages between the server and the nursery: one datagram each on a `SOCK_SEQPACKET` pair.
//! A request may carry one descriptor, the sandbox's end of its stream.
//!
//! The two ends are the same binary, so there is no version and no negotiation. Nothing that a
//! sandbox says travels here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Largest datagram, bytes. Requests are small and fixed in shape; errors are cut.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024;

/// Longest error text in a reply, bytes.
pub(crate) const MAX_ERROR: usize = 4 * 1024;

/// Limits that the nursery puts on one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_quota: u64,
    pub(crate) pids: u64,
    pub(crate) descriptors: u64,
    pub(crate) tmp_bytes: u64,
    pub(crate) workspace_bytes: u64,
}

/// What the kernel says of the limits after they were set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effective {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_quota: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) weak: Vec<String>,
}

/// What the kernel counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) oom_kills: u64,
    pub(crate) pids_refused: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Ready to serve; answered with the weak points of this host.
    Hello,
    /// With one descriptor: the stream of the container's first process.
    Create {
        id: String,
        limits: Limits,
        /// Directory of the image's root file system; none for the host presentation.
        image: Option<PathBuf>,
    },
    Start {
        id: String,
    },
    Usage {
        id: String,
    },
    /// Answered when no process of the container is left.
    Kill {
        id: String,
    },
    /// Answered when nothing of the container is left.
    Remove {
        id: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) serial: u64,
    pub(crate) operation: Operation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    NotFound,
    AlreadyExists,
    Internal(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Success {
    Done,
    Hello { weak: Vec<String> },
    Created(Effective),
    Usage(Counted),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    Reply {
        serial: u64,
        result: Result<Success, Failure>,
    },
    /// The first process of a container is gone.
    Exited { id: String, exit: Exit },
    /// The nursery cannot start or go on.
    Fatal { error: String, hint: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// Cuts an error text to what a reply may carry.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > MAX_ERROR {
        let mut end = MAX_ERROR;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
