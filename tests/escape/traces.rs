//! What a program in a sandbox can see and do. Each refusal is held against the same attempt
//! outside, where it has to work, and each has to be the very error that the barrier gives.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{CANARY, Home, finish};
use crate::host::{Process, note};
use crate::leftovers::RANGE;

pub(crate) const FACTS: &str = include_str!("probes/facts.py");
pub(crate) const REFUSED: &str = include_str!("probes/refused.py");

/// A process of its own namespaces, so that the control of an attempt cannot touch the host's.
const APART: [&str; 8] = [
    "--mount",
    "--pid",
    "--net",
    "--ipc",
    "--uts",
    "--cgroup",
    "--fork",
    "--mount-proc",
];

/// What a probe prints in a sandbox.
fn inside(home: &Home, name: &str, source: &str) -> Value {
    let file = home.file(name, source);
    let finished = home.run(&[file.to_str().unwrap()]);
    assert_eq!(
        (finished.code(), finished.stderr.as_str()),
        (0, ""),
        "{name}"
    );
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"))
}

/// What it prints outside, as root; `wrapper` starts the interpreter.
fn outside(home: &Home, name: &str, source: &str, wrapper: &[&str]) -> Value {
    let file = home.file(name, source);
    let words = [
        wrapper,
        &["/usr/bin/python3", "-B", file.to_str().unwrap(), "control"],
    ]
    .concat();
    let mut command = Command::new(words[0]);
    home.furnish(&mut command);
    command.args(&words[1..]);
    let finished = finish(command, b"");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"))
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn a_program_is_nobody() {
    let Some(home) = Home::for_root("identity in a sandbox") else {
        return;
    };
    let facts = inside(&home, "facts.py", FACTS);
    let control = outside(&home, "facts.py", FACTS, &[]);
    expect_nobody(&facts);
    let some = CAPABILITIES
        .iter()
        .any(|set| control["status"][*set] != NO_CAPABILITY);
    assert!(
        some && control["status"]["NoNewPrivs"] == "0",
        "{control:#}"
    );
    // A program that takes its owner's id outside, and none in here.
    if control["set_uid"].is_null() {
        note("INCONCLUSIVE set-user-id: this host has no such program");
    } else {
        assert_eq!(control["set_uid"][1], "0", "{control:#}");
        assert_eq!(facts["set_uid"], json!(["1000", "1000", "1000", "1000"]));
    }
}

const CAPABILITIES: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
const NO_CAPABILITY: &str = "0000000000000000";

/// What holds in each sandbox, whoever made it.
pub(crate) fn expect_nobody(facts: &Value) {
    let nobody = "1000\t1000\t1000\t1000";
    let fields = [
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Groups", ""),
        ("Uid", nobody),
        ("Gid", nobody),
    ];
    for (field, value) in fields
        .into_iter()
        .chain(CAPABILITIES.map(|set| (set, NO_CAPABILITY)))
    {
        assert_eq!(facts["status"][field], value, "{field}");
    }
    // As the nursery numbers its ids, of which the host's are others: its root, and one of this
    // sandbox's own.
    for map in ["uid_map", "gid_map"] {
        let map: Vec<u32> = texts(&facts[map])
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        let [0, 0, 1, 1000, 2..=65_535, 1] = map.as_slice() else {
            panic!("{map:?} is not the root and one user of the nursery")
        };
    }
    assert_eq!(facts["core"], json!([0, 0]));
    assert_eq!(facts["nofile"], json!([256, 256]));
    assert_eq!(facts["hostname"], "sandbox");
    assert_eq!(facts["interfaces"], json!(["lo"]));
    let processes = facts["processes"].as_array().unwrap();
    assert_eq!(
        (processes.len(), &processes[0]),
        (2, &json!(1)),
        "the agent and the program"
    );
}

#[test]
fn nothing_is_inherited() {
    let Some(home) = Home::for_root("what a sandbox inherits") else {
        return;
    };
    let facts = inside(&home, "facts.py", FACTS);
    let control = outside(&home, "facts.py", FACTS, &[]);
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

    // The three streams, and one socket to the agent for value and traceback.
    let descriptors = json!({"0": "/dev/null", "1": "pipe", "2": "pipe", "3": "socket"});
    assert_eq!(facts["descriptors"], descriptors);
}

#[test]
fn a_sandbox_shows_the_system_and_nothing_of_the_host() {
    let Some(home) = Home::for_root("files in a sandbox") else {
        return;
    };
    let facts = inside(&home, "facts.py", FACTS);
    let control = outside(&home, "facts.py", FACTS, &[]);
    let root = [
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libexec",
        "libx32",
        "proc",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "workspace",
    ];
    for (dir, allowed) in [
        ("root", &root[..]),
        ("run", &["forge"]),
        ("tmp", &[]),
        (
            "dev",
            &[
                "fd", "full", "null", "ptmx", "random", "shm", "stderr", "stdin", "stdout", "tty",
                "urandom", "zero",
            ],
        ),
    ] {
        let more: Vec<_> = texts(&facts[dir])
            .into_iter()
            .filter(|n| !allowed.contains(n))
            .collect();
        assert!(more.is_empty(), "{dir} has {more:?} too");
        if dir != "tmp" {
            let more = texts(&control[dir])
                .into_iter()
                .filter(|n| !allowed.contains(n))
                .count();
            assert!(more > 0, "the control of {dir} proves nothing");
        }
    }
    assert_eq!(facts["sys"], 0);
    assert_eq!(facts["here"], json!(["/workspace", []]));
    let secret = [
        "shadow",
        "gshadow",
        "subuid",
        "sudoers",
        "ssh",
        "machine-id",
        "fstab",
        "environment",
    ];
    let shown: Vec<_> = texts(&facts["etc"])
        .into_iter()
        .filter(|n| secret.contains(n))
        .collect();
    assert!(shown.is_empty(), "/etc has {shown:?}");
    assert!(texts(&control["etc"]).contains(&"shadow"));

    // Only what is private is writable, nothing but the kernel's own files is on a mount that
    // knows set-user-id programs or devices.
    let writable = ["/proc", "/dev", "/dev/shm", "/tmp", "/workspace"];
    for (point, options) in facts["mounts"].as_object().unwrap() {
        let options = texts(options);
        let kernel =
            point.starts_with("/dev/") && point != "/dev/shm" || point.starts_with("/proc/");
        let confined = options.contains(&"nosuid") && options.contains(&"nodev");
        assert!(kernel || confined, "{point} is mounted with {options:?}");
        let read_only = options.contains(&"ro");
        assert!(
            kernel || read_only || writable.contains(&point.as_str()),
            "{point}: {options:?}"
        );
    }
    for (name, size) in control["machine"].as_object().unwrap() {
        let told = &facts["machine"][name];
        let nothing = *told == 0 || *told == "FileNotFoundError";
        assert!(nothing, "/proc/{name} tells {told} inside, {size} outside");
        if size.as_u64().is_none_or(|size| size == 0) {
            note(&format!(
                "INCONCLUSIVE /proc/{name}: nothing in it outside either"
            ));
        }
    }
    for (name, size) in facts["kept"].as_object().unwrap() {
        assert!(size.as_u64() > Some(0), "/proc/{name}: {size}");
    }
    let telling = control["machine"].as_object().unwrap().values();
    assert!(
        telling.filter(|size| size.as_u64() > Some(0)).count() >= 3,
        "{control:#}"
    );
}

/// What an attempt has to get, where that is not EPERM.
fn refusal(attempt: &str) -> &'static [&'static str] {
    match attempt {
        // So that libc falls back to what the filter can look into.
        "clone3" | "unknown call" => &["ENOSYS"],
        // Numbers mean other calls there: no answer, an end.
        "x32 getpid" | "int 0x80 getpid" => &["SIGSYS"],
        _ if attempt.starts_with("write /proc/sys") => &["EACCES", "EROFS", "ENOENT"],
        // Hidden, so there is nothing to open.
        _ if attempt.starts_with("write /proc/pressure/") => &["ENOENT"],
        _ if attempt.starts_with("write /sys/") || attempt.starts_with("list /sys/") => &["ENOENT"],
        "write /etc/passwd" | "write /usr/bin/env" => &["EACCES", "EROFS"],
        "create in /var/tmp" => &["ENOENT"],
        _ if attempt.starts_with("create in ") => &["EROFS"],
        "read /etc/shadow" | "read /dev/kmsg" | "read /dev/ptmx" => &["ENOENT"],
        "read /proc/kmsg" => &["EACCES", "ENOENT"],
        _ if attempt.contains(" /proc/1/") => &["EACCES"],
        _ if attempt.starts_with("list /") => &["ENOENT"],
        _ => &["EPERM"],
    }
}

/// The attempts that did not get what they must.
pub(crate) fn wrong_answers(told: &Value) -> Vec<String> {
    let told = told.as_object().unwrap();
    assert!(told.len() > 110, "only {} attempts", told.len());
    let wrong = |(attempt, got): (&String, &Value)| {
        let (got, expected) = (got.as_str().unwrap(), refusal(attempt));
        let right = expected.contains(&got);
        (!right).then(|| format!("{attempt} got {got}, not {expected:?}"))
    };
    told.iter().filter_map(wrong).collect()
}

#[test]
fn what_could_reach_the_host_is_refused() {
    let Some(home) = Home::for_root("refusals in a sandbox") else {
        return;
    };
    let told = inside(&home, "refused.py", REFUSED);
    let control = outside(
        &home,
        "refused.py",
        REFUSED,
        &[&["unshare"], &APART[..]].concat(),
    );
    let mut wrong = wrong_answers(&told);
    let mut conclusive = 0;
    for (attempt, got) in told.as_object().unwrap() {
        let (got, without) = (got.as_str().unwrap(), control[attempt].as_str().unwrap());
        match without {
            // The kernel has no such thing, so nobody was asked for permission.
            "ENOSYS" | "ENOENT" | "EAFNOSUPPORT" if got == without => {
                note(&format!("INCONCLUSIVE {attempt}: {without} outside too"));
            }
            _ if got == without => wrong.push(format!("{attempt} gets {got} outside too")),
            _ => conclusive += 1,
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A host that refuses everything to everybody would prove nothing.
    assert!(
        conclusive > 100,
        "only {conclusive} attempts prove something"
    );
    home.expect_nothing_left();
}

#[test]
fn writable_places_are_private_and_gone_with_the_run() {
    let Some(home) = Home::for_root("private directories") else {
        return;
    };
    let mut server = Server::with(&home, &[("EXECUTION__CONCURRENCY", "1")]);
    let write = "import os\n\
                 for dir in ['/tmp', '/workspace', '/dev/shm', '/tmp/deep']:\n\
                 \x20   os.makedirs(dir, exist_ok=True)\n\
                 \x20   with open(dir + '/mine', 'w') as file: file.write('text')\n\
                 [open(dir + '/mine').read() for dir in ['/tmp', '/workspace', '/dev/shm', '/tmp/deep']]";
    assert_eq!(
        server.call(json!({"code": write}))["result"],
        json!(vec!["text"; 4])
    );
    let look = "import os\n[os.listdir(dir) for dir in ['/tmp', '/workspace', '/dev/shm']]";
    assert_eq!(
        server.call(json!({"code": look}))["result"],
        json!([[], [], []])
    );
    // A named file in what is shared and read-only.
    for (dir, path) in [
        ("/usr", "/usr/x"),
        ("the root", "/x"),
        ("/etc", "/etc/x"),
        ("/run", "/run/forge/x"),
    ] {
        let code = format!("open('{path}', 'w')");
        let told = server.call(json!({ "code": code }));
        let message = told["error"]["message"].as_str().unwrap();
        let refused = message.contains("[Errno 30]") || message.contains("[Errno 13]");
        assert!(refused, "{dir}: {told:#}");
    }
    server.expect_rest();
    server.close();
}

/// Opens each address and prints what came of it.
const CONNECT: &str = "
import errno, json, socket
told = {}
def attempt(name, family, address, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(5)
            s.connect(address)
        told[name] = 'done'
    except OSError as e:
        told[name] = errno.errorcode.get(e.errno, repr(e))
attempt('tcp', socket.AF_INET, ('127.0.0.1', PORT))
attempt('abstract', socket.AF_UNIX, '\\0NAME')
attempt('path', socket.AF_UNIX, 'PATH')
if INSIDE:
    attempt('tcp 6', socket.AF_INET6, ('::1', PORT))
    attempt('metadata', socket.AF_INET, ('169.254.169.254', 80))
    attempt('elsewhere', socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM)
    try:
        socket.getaddrinfo('example.com', 80)
        told['dns'] = 'done'
    except socket.gaierror as e:
        told['dns'] = 'no address'
told['interfaces'] = [name for _, name in socket.if_nameindex()]
told['seen'] = 'NAME' in open('/proc/net/unix').read()
print(json.dumps(told))
";

#[test]
fn there_is_no_network_and_no_socket_of_the_host() {
    let Some(home) = Home::for_root("network in a sandbox") else {
        return;
    };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("forge-test-{}", std::process::id());
    let abstract_one =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let path = home.file("place", "").with_file_name("socket");
    let named = UnixListener::bind(&path).unwrap();
    tcp.set_nonblocking(true).unwrap();
    for listener in [&abstract_one, &named] {
        listener.set_nonblocking(true).unwrap();
    }
    let program = |inside: &str| {
        CONNECT
            .replace("PORT", &tcp.local_addr().unwrap().port().to_string())
            .replace("NAME", &name)
            .replace("PATH", path.to_str().unwrap())
            .replace("INSIDE", inside)
    };
    let told = inside(&home, "connect.py", &program("True"));
    let expected = json!({
        "tcp": told["tcp"],
        "tcp 6": told["tcp 6"],
        "abstract": "ECONNREFUSED",
        "path": "ENOENT",
        "metadata": "ENETUNREACH",
        "elsewhere": "ENETUNREACH",
        "dns": "no address",
        "interfaces": ["lo"],
        "seen": false,
    });
    assert_eq!(told, expected);
    // A host without IPv6 has not even the address.
    let v6 = told["tcp 6"].as_str().unwrap();
    assert!(
        [
            "ECONNREFUSED",
            "EADDRNOTAVAIL",
            "EAFNOSUPPORT",
            "ENETUNREACH"
        ]
        .contains(&v6),
        "{v6}"
    );
    let nobody = |kind: Option<ErrorKind>| assert_eq!(kind, Some(ErrorKind::WouldBlock));
    nobody(tcp.accept().err().map(|e| e.kind()));
    nobody(abstract_one.accept().err().map(|e| e.kind()));
    nobody(named.accept().err().map(|e| e.kind()));

    let control = outside(&home, "connect.py", &program("False"), &[]);
    for address in ["tcp", "abstract", "path"] {
        assert_eq!(control[address], "done", "{control:#}");
    }
    assert_eq!(control["seen"], true);
    tcp.accept().unwrap();
    abstract_one.accept().unwrap();
    named.accept().unwrap();
}

/// Listens in every way there is, and leaves files.
const SHOW: &str = "
import os, socket
inet = socket.create_server(('127.0.0.1', 4711))
unix = socket.socket(socket.AF_UNIX)
unix.bind('\\0neighbour')
unix.listen()
for dir in ['/tmp', '/workspace', '/dev/shm']:
    open(dir + '/mine', 'w').close()
print('ready', flush=True)
";

/// Looks for what `SHOW` shows.
const LOOK: &str = "
import errno, os, socket
def connect(family, address):
    with socket.socket(family) as s:
        return errno.errorcode.get(s.connect_ex(address), 'done')
{
    'inet': connect(socket.AF_INET, ('127.0.0.1', 4711)),
    'unix': connect(socket.AF_UNIX, '\\0neighbour'),
    'files': os.listdir('/tmp') + os.listdir('/workspace') + os.listdir('/dev/shm'),
    'processes': len([pid for pid in os.listdir('/proc') if pid.isdigit()]),
}
";

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let Some(home) = Home::for_root("neighbours") else {
        return;
    };
    let mut server = Server::start(&home);
    let neighbour = server.begin_until(&format!("{SHOW}\nimport time\ntime.sleep(1000)"), "ready");
    let seen = server.call(json!({"code": LOOK}))["result"].clone();
    let nothing =
        json!({"inet": seen["inet"], "unix": "ECONNREFUSED", "files": [], "processes": 2});
    assert_eq!(seen, nothing);
    assert!(
        ["ECONNREFUSED", "ENETUNREACH"].contains(&seen["inet"].as_str().unwrap()),
        "{seen:#}"
    );
    server.notify("notifications/cancelled", json!({"requestId": neighbour}));
    server.expect_rest();
    server.close();
}

/// Sends descriptors and receives none, until the kernel has enough of it. It counts them for the
/// user on the host.
const IN_FLIGHT: &str = "
import array, errno, os, socket
mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
def send(count):
    rights = array.array('i', [0] * count)
    try: mine.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as e: return errno.errorcode[e.errno]
    return 'sent'
";

#[test]
fn what_the_kernel_counts_by_user_is_counted_for_each_sandbox() {
    let Some(home) = Home::for_root("counts of the kernel by user") else {
        return;
    };
    let mut server = Server::start(&home);
    let hold = "while (got := send(100)) == 'sent': pass\n\
                print(got, flush=True)\n\
                import time; time.sleep(1000)";
    let neighbour = server.begin_until(&format!("{IN_FLIGHT}{hold}"), "ETOOMANYREFS");
    let told = server.call(json!({"code": format!("{IN_FLIGHT}[send(100), send(100)]")}));
    assert_eq!(told["result"], json!(["sent", "sent"]), "{told:#}");

    // And so for whatever else it counts.
    let another = server.begin_until(
        "print('here', flush=True)\nimport time; time.sleep(1000)",
        "here",
    );
    let census = home.census();
    let users: BTreeSet<u32> = census
        .ours()
        .filter(|process| census.in_sandbox(process))
        .map(|process| process.user)
        .collect();
    assert_eq!(users.len(), 2, "two sandboxes: {users:?}");
    for id in [neighbour, another] {
        server.notify("notifications/cancelled", json!({"requestId": id}));
    }
    server.expect_rest();
    server.close();
}

#[test]
fn two_servers_have_no_user_in_common() {
    let Some(home) = Home::for_root("users of two servers") else {
        return;
    };
    let mut servers = [Server::start(&home), Server::start(&home)];
    let roots = servers.each_mut().map(|server| {
        assert_eq!(server.call(json!({"code": "6*7"}))["result"], 42);
        Process::read(server.helpers().nursery).unwrap().user
    });
    assert_ne!(roots[0], roots[1]);
    assert!(roots.iter().all(|root| RANGE.contains(root)), "{roots:?}");
    for mut server in servers {
        server.hang_up();
        assert!(server.end().0.success());
    }
    home.expect_nothing_left();
}

/// What the neighbours do not find of each other, a program finds of itself; the loopback
/// interface is there for that.
#[test]
fn a_program_may_talk_to_itself() {
    let Some(home) = Home::for_root("loopback in a sandbox") else {
        return;
    };
    let told = home.result(&["-c", &format!("{SHOW}{LOOK}")]);
    let expected = json!({
        "inet": "done",
        "unix": "done",
        "files": ["mine", "mine", "mine"],
        "processes": 2,
    });
    assert_eq!(told["result"], expected, "{told:#}");
}

#[test]
fn files_of_the_host_and_of_the_server_are_not_there() {
    let Some(home) = Home::for_root("files of the host") else {
        return;
    };
    let shared = tempfile::Builder::new()
        .prefix("forge-test-")
        .tempfile_in("/dev/shm")
        .unwrap();
    let config = home.file("forge.yaml", "execution:\n  concurrency: 1\n");
    // Writes the audit log, so that it is there for the control.
    assert_eq!(home.run(&["-c", "1"]).code(), 0);
    let audit = home.audit_path();
    let paths = [
        home.path(),
        &config,
        &audit,
        shared.path(),
        std::path::Path::new(crate::home::BINARY),
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")),
        std::path::Path::new("/etc/shadow"),
        std::path::Path::new("/var/lib/dpkg"),
    ];
    let list = json!(paths).to_string();
    let code = format!(
        "import errno, os\n\
         def look(path):\n\
         \x20   try: os.stat(path); return 'there'\n\
         \x20   except OSError as e: return errno.errorcode[e.errno]\n\
         text = open('/proc/self/mountinfo').read() + open('/proc/self/maps').read()\n\
         [[look(path) for path in {list}], {:?} in text]",
        home.path()
    );
    let told = home.result(&["--config", config.to_str().unwrap(), "-c", &code]);
    assert_eq!(
        told["result"],
        json!([vec!["ENOENT"; 8], false]),
        "{told:#}"
    );
    for path in paths {
        assert!(
            fs::exists(path).unwrap(),
            "the control of {} proves nothing",
            path.display()
        );
    }
}
