//! The agent and its stream: a program of the same user cannot look into process 1, take its
//! descriptors or end it, and inherits nothing but its own streams and the channel of its reports.
//!
//! What a program may write into that channel, and that it harms nobody else, is tested in
//! `tests/sandbox/reports.rs`; the frames of the stream in `images/agent` and by its fuzz target.

use serde_json::json;

use crate::home::CANARY;
use crate::place::everywhere;
use crate::verdict::{AGENT, texts};

#[test]
fn the_agent_is_out_of_reach() {
    everywhere("the agent", |place| place.expect_refused(&AGENT));
}

#[test]
fn the_agent_shows_nothing_of_itself() {
    everywhere("facts of the agent", |place| {
        let (facts, _) = place.facts();
        // What belongs to a process that may be looked into has its user; else it is root's.
        assert_eq!(facts["owner of first"], 0);
        assert_eq!(facts["dumpable"], 1, "the control: the program itself");
        // Known to everybody of any process; no memory, no environment, no descriptor.
        let known = [
            "arch_status",
            "attr",
            "autogroup",
            "cgroup",
            "cmdline",
            "comm",
            "coredump_filter",
            "cpu_resctrl_groups",
            "cpuset",
            "gid_map",
            "latency",
            "limits",
            "loginuid",
            "mountinfo",
            "mounts",
            "net",
            "oom_adj",
            "oom_score",
            "oom_score_adj",
            "patch_state",
            "projid_map",
            "sched",
            "schedstat",
            "sessionid",
            "setgroups",
            "stat",
            "statm",
            "status",
            "task",
            "timens_offsets",
            "uid_map",
            "wchan",
        ];
        let read = texts(&facts["first"]["read"]);
        let more: Vec<_> = read.iter().filter(|name| !known.contains(name)).collect();
        assert!(more.is_empty(), "{more:?} can be read of the agent");
        // The kernel refuses the writing: an attempt of its own.
        let written = texts(&facts["first"]["written"]);
        assert!(
            written.iter().all(|name| *name == "timerslack_ns"),
            "{written:?}"
        );
    });
}

#[test]
fn nothing_is_inherited() {
    everywhere("what a sandbox inherits", |place| {
        let (facts, control) = place.facts();
        // The list of `images/agent`, and no word more.
        let environment = json!({
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/workspace",
            "USER": "forge",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TMPDIR": "/tmp",
            "OPENBLAS_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
            "MPLCONFIGDIR": "/tmp/.matplotlib",
            "XDG_CACHE_HOME": "/tmp/.cache",
        });
        assert_eq!(facts["environment"], environment);
        assert_eq!(control["environment"]["FORGE_TEST_CANARY"], CANARY);

        // The three streams, and one socket to the agent for value and traceback. The descriptors
        // of R are in `tests/sandbox/r.rs`.
        let descriptors = json!({"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "socket"});
        assert_eq!(facts["descriptors"], descriptors);
    });
}

/// Does to process 1 what the kernel lets a process of the same user do, and goes on.
const HARASS: &str = r#"
import os, resource, signal, socket, array, errno
def attempt(function):
    try: function(); return 'done'
    except OSError as e: return errno.errorcode[e.errno]
    except ValueError: return 'EPERM'
sent = [attempt(lambda: os.kill(1, number)) for number in range(65) if number not in (32, 33)]
pidfd = os.pidfd_open(1)
sent += [attempt(lambda: signal.pidfd_send_signal(pidfd, number)) for number in (9, 15, 19, 11)]
# Descriptors that nobody asked for, on the one socket that there is.
rights = array.array('i', [0] * 50)
# A report of two bytes, so that the descriptors come with something that can be read.
with socket.socket(fileno=os.dup(3)) as channel:
    for _ in range(200):
        # Those on their way are counted with the open ones, so it may have to wait for the agent.
        message = [b'\0\0\0\2{}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        while attempt(lambda: channel.sendmsg(*message)) == 'ETOOMANYREFS': pass
    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
[sorted(set(sent)), int.from_bytes(peer[:4], 'little'), os.getppid()]
"#;

#[test]
fn signals_and_foreign_descriptors_do_not_move_the_agent() {
    everywhere("signals to the agent", |place| {
        let mut server = place.server(&[("EXECUTION__CONCURRENCY", "1")]);
        let told = server.call(json!({"code": HARASS, "timeout": 30}));
        assert_eq!(told["ended_by"], "completed", "{told:#}");
        // The kernel takes the signals and drops those that the first process does not wait for.
        assert_eq!(told["result"], json!([["done"], 1, 1]), "{told:#}");
        place.expect_rest(&server);
        let in_r = json!({"name": "execute_r", "arguments": {
            "code": "tools::pskill(1, c(9, 15, 19, 2, 1)); Sys.sleep(0.2); 'here'", "timeout": 30,
        }});
        let id = server.begin("tools/call", in_r);
        assert_eq!(server.told(id)["result"], "here");
        place.expect_rest(&server);
        assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
        server.close();
    });
}

/// The kernel lets it lower the limits of any process of its user. That ends its own sandbox at
/// worst, and is told as what it is: no success, and the server serves on.
#[test]
fn who_starves_the_agent_harms_itself_only() {
    everywhere("limits of the agent", |place| {
        let mut server = place.server(&[("EXECUTION__CONCURRENCY", "1")]);
        for limit in [
            "NOFILE",
            "CPU",
            "DATA",
            "AS",
            "STACK",
            "FSIZE",
            "SIGPENDING",
            "NPROC",
        ] {
            let code = format!(
                "import resource, time\n\
                 resource.prlimit(1, resource.RLIMIT_{limit}, (0, 0))\n\
                 for _ in range(2000): print('x' * 100)\n\
                 display({{'text/html': '<b>x</b>'}})\n\
                 open('/workspace/file', 'w').write('text')\n\
                 'end'"
            );
            let told = server.call(json!({"code": code, "timeout": 3}));
            let ended = told["ended_by"].as_str().unwrap_or("refused");
            crate::host::note(&format!("the agent without {limit}: {ended}"));
            let whole = ended == "completed" && told["result"] == "end";
            assert!(whole || told["success"] == false, "{limit}: {told:#}");
            place.expect_rest(&server);
            assert_eq!(
                server.call(json!({"code": "6*7"}))["result"],
                42,
                "after {limit}"
            );
        }
        server.close();
    });
}
