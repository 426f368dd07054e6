//! Files of the host: of what a host keeps nothing is there, neither its home, its secrets and the
//! server's own files, nor a socket of an engine.

use std::path::Path;

use serde_json::{Value, json};

use crate::home::{BINARY, finish};
use crate::place::everywhere;
use crate::verdict::texts;

#[test]
fn files_of_the_host_and_of_the_server_are_not_there() {
    everywhere("files of the host", |place| {
        let shared = tempfile::Builder::new()
            .prefix("forge-test-")
            .tempfile_in("/dev/shm")
            .unwrap();
        let config = place
            .home
            .file("forge.yaml", "execution:\n  concurrency: 1\n");
        // Writes the audit log, so that it is there for the control.
        assert_eq!(place.run(&["-c", "1"]).code(), 0);
        let audit = place.home.audit_path();
        let paths = [
            place.home.path(),
            &config,
            &audit,
            shared.path(),
            Path::new(BINARY),
            Path::new(env!("CARGO_MANIFEST_DIR")),
            Path::new("/etc/shadow"),
            Path::new("/var/lib/dpkg"),
        ];
        let list = json!(paths).to_string();
        let code = format!(
            "import errno, os\n\
             def look(path):\n\
             \x20   try: os.stat(path); return 'there'\n\
             \x20   except OSError as e: return errno.errorcode[e.errno]\n\
             text = open('/proc/self/mountinfo').read() + open('/proc/self/maps').read()\n\
             [[look(path) for path in {list}], {:?} in text]",
            place.home.path()
        );
        let finished = place.run(&["--json", "--config", config.to_str().unwrap(), "-c", &code]);
        let told: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(
            told["result"],
            json!([vec!["ENOENT"; 8], false]),
            "{told:#}"
        );
        let list = paths.map(|path| format!("'{}'", path.display())).join(", ");
        let code = format!("cat(file.exists(c({list})))");
        let in_r = place.printed("files.R", &code);
        assert_eq!(in_r, ["FALSE"; 8].join(" "));
        let control = place.printed_outside("files.R", &code, &[]);
        assert_eq!(control, ["TRUE"; 8].join(" "), "the control proves nothing");
    });
}

/// Furnishes a mount namespace as hosts are furnished: sockets of engines that answer, files in
/// homes. Looks at each, then starts the program under test, which runs the same look inside.
const FURNISH: &str = r#"
import errno, json, os, socket, subprocess, sys
SOCKETS = ['/run/docker.sock', '/run/podman/podman.sock', '/run/containerd/containerd.sock', '/run/crio/crio.sock',
           '/run/buildkit/buildkitd.sock', '/run/dbus/system_bus_socket', '/run/systemd/private', '/run/user/0/bus',
           '/run/user/1000/podman/podman.sock', '/run/user/1000/gnupg/S.gpg-agent', '/run/user/1000/wayland-0',
           '/tmp/.X11-unix/X0', '/tmp/ssh-agent/agent.1', '/var/run/docker.sock', '/mnt/docker.sock']
FILES = ['/root/token', '/home/bob/token', '/home/bob/.ssh/key', '/srv/token', '/opt/token', '/mnt/token', '/media/token',
         '/run/secrets/token', '/run/forge/token', '/tmp/token', '/var/tmp/token', '/dev/shm/token', '/boot/token', '/etc/token',
         '/var/lib/docker/token', '/var/lib/containers/token', '/var/spool/cron/token', '/var/log/token']
LOOK = '''
import errno, json, os, socket
def errno_of(function):
    try: function(); return 'done'
    except OSError as e: return errno.errorcode[e.errno]
def connect(path):
    with socket.socket(socket.AF_UNIX) as s: s.connect(path)
told = {path: errno_of(lambda: connect(path)) for path in %r}
told.update({path: errno_of(lambda: open(path).close()) for path in %r})
print(json.dumps(told))
''' % (SOCKETS, FILES)
# The program under test may lie where something is mounted over it.
binary = open('BINARY', 'rb').read()
for directory in ['/root', '/home', '/srv', '/opt', '/mnt', '/media', '/run', '/tmp', '/var', '/dev/shm', '/boot']:
    if os.path.isdir(directory):
        subprocess.run(['mount', '-t', 'tmpfs', 'none', directory], check=True)
# Where /etc stays as it is a file is put over one.
os.makedirs('/var/tmp'); os.chmod('/tmp', 0o1777)
held = []
for path in SOCKETS + FILES:
    if path == '/etc/token':
        continue
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if path in SOCKETS:
            s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(); held.append(s)
        else:
            open(path, 'w').write('secret')
    except OSError as e:
        print(path, e, file=sys.stderr)
names = {}
exec(LOOK.rsplit('print', 1)[0], names)
program = '/run/look.py'
open(program, 'w').write(LOOK)
os.environ.update(ENVIRONMENT)
for name in ['TMPDIR', 'HOME', 'XDG_STATE_HOME', 'XDG_RUNTIME_DIR', 'XDG_CACHE_HOME', 'XDG_DATA_HOME']:
    os.environ[name] = f'/run/place/{name}'; os.makedirs(os.environ[name])
with open('/run/mcp-forge', 'wb') as copy: copy.write(binary)
os.chmod('/run/mcp-forge', 0o755)
inside = subprocess.run(['/run/mcp-forge', 'run', program], capture_output=True, text=True)
if inside.returncode: print(inside, file=sys.stderr)
print(json.dumps([names['told'], json.loads(inside.stdout)]))
"#;

#[test]
fn neither_sockets_of_engines_nor_homes_are_there() {
    everywhere("sockets of engines", |place| {
        let environment = json!({"MCP_FORGE_RUNTIME__KIND": place.runtime.name}).to_string();
        let source = FURNISH
            .replace("BINARY", BINARY)
            .replace("ENVIRONMENT", &environment);
        let script = place.home.file("furnish.py", &source);
        let mut command = std::process::Command::new("unshare");
        place.home.furnish(&mut command);
        command.args([
            "--mount",
            "/usr/bin/python3",
            "-B",
            script.to_str().unwrap(),
        ]);
        let finished = finish(command, b"");
        assert_eq!(finished.stderr, "", "{finished:?}");
        let told: Value = serde_json::from_str(&finished.stdout).unwrap();
        let (control, inside) = (&told[0], &told[1]);
        for (path, got) in inside.as_object().unwrap() {
            assert_eq!(got, "ENOENT", "{path}");
            if path != "/etc/token" {
                assert_eq!(control[path], "done", "{path} outside");
            }
        }
        assert!(inside.as_object().unwrap().len() > 30);
    });
}

/// Links of a program lead nowhere but into its own root, also those of the kernel.
#[test]
fn no_link_leads_out() {
    everywhere("links out of a sandbox", |place| {
        let code = "import errno, os\n\
                    def errno_of(function):\n\
                    \x20   try: return function()\n\
                    \x20   except OSError as e: return errno.errorcode[e.errno]\n\
                    up = '../' * 40\n\
                    os.symlink('/proc/1/root/etc/shadow', '/tmp/a'); os.symlink(up + 'etc/shadow', '/tmp/b')\n\
                    os.symlink('/proc/self/root/' + up + 'root', '/tmp/c')\n\
                    file = os.open('/', os.O_RDONLY)\n\
                    [errno_of(lambda: open('/tmp/a')), errno_of(lambda: open('/tmp/b')), errno_of(lambda: os.listdir('/tmp/c')),\n\
                    \x20os.path.samefile('/' + up, '/'), os.path.samefile('/proc/self/root', '/'),\n\
                    \x20errno_of(lambda: os.open('..', os.O_RDONLY, dir_fd=file) and os.listdir(up) == os.listdir('/')),\n\
                    \x20os.readlink('/proc/self/cwd'), sorted(os.listdir('/'))]";
        let told = place.result(code);
        let expected = json!(["EACCES", "ENOENT", "ENOENT", true, true, true, "/workspace"]);
        assert_eq!(
            told.as_array().unwrap()[..7],
            expected.as_array().unwrap()[..]
        );
        assert!(!texts(&told[7]).contains(&"home"), "{told:#}");
    });
}
