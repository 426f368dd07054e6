//! The workspace against the host side: links, devices and renames while its files are brought back
//! give away nothing outside of it, and nothing outside is written.
//!
//! Links, sockets, closed and large files at rest are in `tests/sandbox/files.rs`; this is what
//! moves.

use serde_json::{Value, json};

use crate::place::everywhere;

/// Exchanges a directory and a file with links to what is outside, in children that nobody ends but
/// the agent, until the sandbox is gone.
const RACE: &str = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE, HERE = 2, -100
secret = "secret-" + "of-tmp"
os.makedirs("/tmp/outside")
open("/tmp/outside/file", "w").write(secret)
open("/tmp/secret", "w").write(secret)
os.makedirs("dir"); open("dir/file", "w").write("mine")
open("plain", "w").write("mine")
os.symlink("/tmp/outside", "to dir"); os.symlink("/tmp/secret", "to file")
os.makedirs("deep/a/b"); open("deep/a/b/file", "w").write("mine"); os.symlink("/tmp", "deep/to tmp")
def forever(first, second):
    if os.fork() == 0:
        os.setsid()
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
        while True:
            libc.renameat2(HERE, first, HERE, second, EXCHANGE)
for _ in range(2):
    forever(b"dir", b"to dir")
    forever(b"plain", b"to file")
    forever(b"deep/a", b"deep/to tmp")
# The control: who reads by these names without care gets what is outside.
import time
seen, end = set(), time.monotonic() + 5
while len(seen) < 2 and time.monotonic() < end:
    for path in "plain", "dir/file":
        try: seen.add((path, open(path).read() == secret))
        except OSError: pass
        seen.discard((path, False))
["raced", len(seen)]
"#;

/// Paths and texts of what was brought back.
fn brought(server: &mut crate::client::Server<'_>, told: &Value) -> Vec<(String, Option<String>)> {
    let files = told["files"].as_array().unwrap().clone();
    files
        .iter()
        .map(|file| {
            let path = file["path"].as_str().unwrap().to_owned();
            let text = file["uri"].as_str().map(|uri| {
                let read = server.read(uri).unwrap();
                read["text"].as_str().unwrap_or_default().to_owned()
            });
            (path, text)
        })
        .collect()
}

#[test]
fn a_race_of_renames_brings_nothing_from_outside() {
    everywhere("races in a workspace", |place| {
        let mut server = place.server(&[]);
        for _ in 0..8 {
            let told = server.call(json!({"code": RACE, "timeout": 30, "cpu_quota": 100_000}));
            assert_eq!(told["result"], json!(["raced", 2]), "{told:#}");
            for (path, text) in brought(&mut server, &told) {
                assert!(
                    [
                        "dir/file",
                        "plain",
                        "to dir/file",
                        "to file",
                        "deep/a/b/file",
                        "deep/to tmp/b/file"
                    ]
                    .contains(&path.as_str()),
                    "{path}"
                );
                assert_eq!(text.as_deref(), Some("mine"), "{path}");
            }
            assert!(!told.to_string().contains("secret-of-tmp"));
        }
        place.expect_rest(&server);
        server.close();
    });
}

/// What a program leaves is written to a directory of the host by its own names, whatever is there.
#[test]
fn saved_files_stay_in_their_directory() {
    everywhere("files saved on the host", |place| {
        let given = place.home.file("outside", "untouched");
        let parent = given.parent().unwrap();
        let into = parent.join("into");
        std::fs::create_dir(&into).unwrap();
        // As an earlier run of the same person may have left it, or somebody else who can write there.
        std::os::unix::fs::symlink(&given, into.join("link")).unwrap();
        std::os::unix::fs::symlink(parent, into.join("directory")).unwrap();
        let code = "import os\n\
                    open('link', 'w').write('hostile'); os.mkdir('directory')\n\
                    open('directory/outside', 'w').write('hostile')\n\
                    open('..\\\\outside', 'w').write('hostile'); open('plain', 'w').write('mine')\n\
                    os.symlink('/etc/passwd', 'passwd')";
        let finished = place.run(&["--save-files", into.to_str().unwrap(), "-c", code]);
        let outside = std::fs::read_to_string(&given).unwrap();
        assert_eq!(outside, "untouched", "{finished:?}");
        let beside: Vec<_> = std::fs::read_dir(parent)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(beside.len(), 2, "{beside:?}");
        assert!(!into.join("passwd").exists(), "a link was followed");
        assert_eq!(
            std::fs::read_to_string(into.join("plain")).unwrap(),
            "mine",
            "{finished:?}"
        );
    });
}

/// What no file system of a sandbox lets a program make.
#[test]
fn hard_links_to_files_of_others_are_refused() {
    everywhere("hard links", |place| {
        let code = "import errno, os\n\
                    def link(source, target):\n\
                    \x20   try: os.link(source, target); return 'done'\n\
                    \x20   except OSError as e: return errno.errorcode[e.errno]\n\
                    open('mine', 'w').close(); open('/tmp/mine', 'w').close()\n\
                    [link('mine', 'control'), link('/etc/passwd', 'x'), link('/usr/bin/env', 'x'), link('/tmp/mine', 'x'),\n\
                    \x20link('/dev/null', 'x'), link('/proc/self/exe', 'x'), link('/run/forge/agent', 'x')]";
        let told = place.result(code);
        assert_eq!(
            told,
            json!(["done", "EXDEV", "EXDEV", "EXDEV", "EXDEV", "EXDEV", "EXDEV"])
        );
    });
}
