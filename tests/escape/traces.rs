//! Traces of other runs: no run sees another, neither beside it nor before it, and what the kernel
//! counts is counted for each alone.
//!
//! That nothing is left on the host after runs of every ending, after 200 of them, and after each
//! part of the server was killed is tested in `tests/sandbox` (`leftovers`, `endings`, `many`,
//! `crashes`); each test here ends with the same count.

use std::collections::BTreeSet;

use serde_json::json;

use crate::host::Process;
use crate::leftovers::RANGE;
use crate::place::everywhere;

/// Listens in every way there is, and leaves files.
pub(crate) const SHOW: &str = "
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
pub(crate) const LOOK: &str = "
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
fn writable_places_are_private_and_gone_with_the_run() {
    everywhere("private directories", |place| {
        let mut server = place.server(&[("EXECUTION__CONCURRENCY", "1")]);
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
        place.expect_rest(&server);
        server.close();
    });
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    everywhere("neighbours", |place| {
        let mut server = place.server(&[]);
        let neighbour =
            server.begin_until(&format!("{SHOW}\nimport time\ntime.sleep(1000)"), "ready");
        let seen = server.call(json!({"code": LOOK}))["result"].clone();
        let nothing =
            json!({"inet": seen["inet"], "unix": "ECONNREFUSED", "files": [], "processes": 2});
        assert_eq!(seen, nothing);
        assert!(
            ["ECONNREFUSED", "ENETUNREACH"].contains(&seen["inet"].as_str().unwrap()),
            "{seen:#}"
        );
        server.notify("notifications/cancelled", json!({"requestId": neighbour}));
        place.expect_rest(&server);
        server.close();
    });
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
    everywhere("counts of the kernel by user", |place| {
        let mut server = place.server(&[]);
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
        let census = place.home.census();
        let users: BTreeSet<u32> = census
            .ours()
            .filter(|process| census.in_sandbox(process))
            .map(|process| process.user)
            .collect();
        assert_eq!(users.len(), 2, "two sandboxes: {users:?}");
        for id in [neighbour, another] {
            server.notify("notifications/cancelled", json!({"requestId": id}));
        }
        place.expect_rest(&server);
        server.close();
    });
}

#[test]
fn two_servers_have_no_user_in_common() {
    everywhere("users of two servers", |place| {
        let mut servers = [place.server(&[]), place.server(&[])];
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
    });
}

/// Leaves what the next run's interpreter, shell or libraries would read, were it there.
const PLANT: &str = r#"
import os, site, subprocess, sys
def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as file: file.write(text)
evil = "import os; os.environ['FORGE_PLANTED'] = '1'; print('planted')\n"
for name in ['sitecustomize', 'usercustomize', 'json', 'runner', 'encodings']: write(f'/workspace/{name}.py', evil)
write(site.getusersitepackages() + '/planted.pth', evil)
write('/workspace/.local/lib/x/x', '')
for name in ['.Rprofile', '.Renviron', '.bashrc', '.profile', '.pythonstartup', '.gdbinit']:
    write('/workspace/' + name, 'FORGE_PLANTED=1; cat("planted")\n')
write('/tmp/.matplotlib/matplotlibrc', 'backend: planted\n')
write('/tmp/.cache/x', '')
write('/dev/shm/sem.planted', '')
os.environ['FORGE_PLANTED'] = os.environ['LD_PRELOAD'] = '/workspace/x.so'
subprocess.Popen(['sleep', '1000'], start_new_session=True)
'left'
"#;

#[test]
fn what_a_run_plants_is_not_in_the_next() {
    everywhere("planted start-up files", |place| {
        let mut server = place.server(&[("EXECUTION__CONCURRENCY", "1")]);
        let look = "import os, sys\n\
                    places = ['/tmp', '/workspace', '/dev/shm']\n\
                    [sorted(name for name in os.environ if 'PLANTED' in name or name.startswith('LD_')),\n\
                    \x20[os.listdir(place) for place in places],\n\
                    \x20len([pid for pid in os.listdir('/proc') if pid.isdigit()]),\n\
                    \x20[path for path in sys.path if path.startswith(tuple(places))]]";
        // The control: a fresh sandbox, to which the later ones are held.
        let fresh = server.call(json!({"code": look}));
        assert_eq!(fresh["result"][0], json!([]), "{fresh:#}");
        let planted = server.call(json!({"code": PLANT}));
        assert_eq!(planted["result"], "left", "{planted:#}");
        let next = server.call(json!({"code": look}));
        assert_eq!(next["result"], fresh["result"], "{next:#}");
        assert_eq!((&next["stdout"], &next["stderr"]), (&json!(""), &json!("")));

        let mut in_r = |code: &str| {
            let arguments = json!({"name": "execute_r", "arguments": {"code": code}});
            let id = server.begin("tools/call", arguments);
            server.told(id)
        };
        let planted = in_r(
            "Sys.setenv(FORGE_PLANTED = '1', R_PROFILE_USER = '/tmp/x'); options(planted = TRUE)\n\
             for (name in c('.Rprofile', '.Renviron', '.RData')) writeLines('cat(1)', file.path('/workspace', name))\n\
             planted <- 1; setwd('/tmp'); Sys.umask('000'); 'left'",
        );
        assert_eq!(planted["result"], "left", "{planted:#}");
        let next = in_r(
            "cat(Sys.getenv('FORGE_PLANTED'), is.null(getOption('planted')), exists('planted'), getwd(),\n\
             length(list.files('/workspace', all.files = TRUE, no.. = TRUE)), format(Sys.umask()))",
        );
        assert_eq!(next["stdout"], " TRUE FALSE /workspace 0 22", "{next:#}");
        place.expect_rest(&server);
        server.close();
    });
}
