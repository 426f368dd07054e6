//! System calls: what `images/seccomp/default.toml` does not allow is refused, whichever entry it
//! takes. The unit tests of `adapters/libcontainer` hold the filter against the whole list.

use crate::place::everywhere;
use crate::verdict::SECCOMP;

#[test]
fn the_kernel_is_not_asked() {
    everywhere("system calls", |place| place.expect_refused(&SECCOMP));
}

/// What the list refuses must not be what programs need.
#[test]
fn what_programs_need_goes_on() {
    everywhere("allowed system calls", |place| {
        let code = "import multiprocessing, os, subprocess, tempfile, threading, ctypes, mmap\n\
                    pool = multiprocessing.get_context('fork').Pool(2)\n\
                    squares = pool.map(abs, [-1, -2]); pool.close(); pool.join()\n\
                    with tempfile.TemporaryFile() as file: file.write(b'x')\n\
                    thread = threading.Thread(target=lambda: None); thread.start(); thread.join()\n\
                    ended = subprocess.run(['/bin/sh', '-c', 'exit 3']).returncode\n\
                    called = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)()\n\
                    [squares, ended, called, ctypes.CDLL(None).personality(0xffffffff) >= 0]";
        assert_eq!(place.result(code), serde_json::json!([[1, 2], 3, 5, true]));
    });
}
