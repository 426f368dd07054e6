//! How Python is started: `python3` with `runner.py`, and one socket.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::{Channel, Ends, Reserved, interpreter};

const BOOTSTRAP: &str =
    "import sys; sys.path.insert(0, '/run/forge/python'); import runner; runner.main(3)";

pub(super) fn command() -> Command {
    let mut command = interpreter("python3");
    command
        .args(["-I", "-S", "-B", "-u", "-X", "utf8", "-c", BOOTSTRAP])
        .env("MPLBACKEND", "agg")
        // As for R: OpenBLAS, of numpy, starts a thread for each CPU of the host.
        .env("OPENBLAS_NUM_THREADS", "1")
        // matplotlib keeps a cache; the home is the user's workspace.
        .env("MPLCONFIGDIR", "/tmp/.matplotlib");
    command
}

/// One socket, of which the program's end is descriptor 3.
pub(super) fn ends(Reserved { three, four: _ }: Reserved) -> io::Result<Ends> {
    drop(three);
    let (theirs, ours) = UnixStream::pair()?;
    let ours = OwnedFd::from(ours);
    Ok(Ends {
        theirs: vec![theirs.into()],
        ours: Channel {
            reports: File::from(ours.try_clone()?),
            answers: File::from(ours),
        },
    })
}
