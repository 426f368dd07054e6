//! What every sandbox has, whatever makes it. The escape suite attacks it.

use super::subject::{job, limits, ok};
use super::{Subject, contract};
use crate::vocabulary::{GuestHello, ResourceLimits};

contract! {
    the_user_is_no_one: Programs,
    no_capability_is_left: Programs,
    system_calls_are_filtered: Programs,
    the_descriptor_limit_is_that_asked_for: Programs,
    no_core_is_written: Programs,
    namespaces_are_not_those_of_the_host: Programs,
    namespaces_are_not_those_of_another_sandbox: Programs,
    the_root_is_read_only: Programs,
    writable_mounts_are_inert: Programs,
    sizes_are_those_asked_for: Programs,
    there_is_no_network: Programs,
    there_are_no_devices_but_the_harmless: Programs,
    no_process_of_others_is_seen: Programs,
    the_environment_tells_nothing: Programs,
    nothing_of_a_run_is_seen_by_another: Programs,
    the_host_name_is_not_that_of_the_host: Programs,
}

async fn hello(s: &Subject, limits: ResourceLimits) -> GuestHello {
    let mut live = s.begin(limits, job("1")).await;
    let ran = live.rest().await;
    s.remove(&live.id).await;
    ran.hello.expect("a greeting")
}

async fn the_user_is_no_one(s: Subject) {
    let hello = hello(&s, limits()).await;
    assert_eq!((hello.uid, hello.gid, hello.groups), (1000, 1000, 0));
    let code = "import os\nprint(os.getresuid(), os.getresgid(), set(os.getgroups()) <= {1000})";
    let told = s.prints(code).await;
    assert_eq!(told, "(1000, 1000, 1000) (1000, 1000, 1000) True\n");
}

async fn no_capability_is_left(s: Subject) {
    let hello = hello(&s, limits()).await;
    assert_eq!((hello.capabilities, hello.no_new_privs), (0, true));
}

async fn system_calls_are_filtered(s: Subject) {
    assert_eq!(hello(&s, limits()).await.seccomp_mode, 2);
    // keyctl(2), which no program needs; uname(2) as its control.
    let code = "import ctypes, platform\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                number = {'x86_64': 250, 'aarch64': 219}[platform.machine()]\n\
                print(libc.syscall(number, 0, -3, 0), ctypes.get_errno())";
    assert_eq!(s.prints(code).await, "-1 1\n");
}

async fn the_descriptor_limit_is_that_asked_for(s: Subject) {
    let asked = ResourceLimits {
        descriptors: 77,
        ..limits()
    };
    assert_eq!(hello(&s, asked).await.descriptors, 77);
}

async fn no_core_is_written(s: Subject) {
    assert_eq!(hello(&s, limits()).await.core_bytes, 0);
}

async fn namespaces_are_not_those_of_the_host(s: Subject) {
    let host = ok(s.runtime.info().await).host_namespaces;
    let hello = hello(&s, limits()).await;
    assert!(host.len() >= 6, "{host:?}");
    for (name, inode) in host {
        let inside = hello.namespaces.get(&name).copied().unwrap_or_default();
        assert!(inside != 0 && inside != inode, "{name}");
    }
}

async fn namespaces_are_not_those_of_another_sandbox(s: Subject) {
    let mut one = s.begin(limits(), job("import time\ntime.sleep(600)")).await;
    let Some(crate::vocabulary::GuestEvent::Hello(first)) = ok(one.run.next_event().await) else {
        panic!("no greeting")
    };
    let second = hello(&s, limits()).await;
    for name in ["pid", "mnt", "net", "ipc", "uts"] {
        assert_ne!(first.namespaces[name], second.namespaces[name], "{name}");
    }
    s.remove(&one.id).await;
}

async fn the_root_is_read_only(s: Subject) {
    let hello = hello(&s, limits()).await;
    let root = hello.mounts.iter().find(|mount| mount.path == "/");
    assert!(
        root.is_some_and(|root| root.read_only),
        "{:?}",
        hello.mounts
    );
    let code = "for p in ['/x', '/etc/x', '/usr/x', '/usr/bin/x', '/run/forge/x', '/proc/sys/kernel/hostname']:\n    \
                try: open(p, 'w'); print(p, 'written')\n    except OSError as e: assert e.errno in (13, 30), e\n\
                open('/tmp/x', 'w'); open('/workspace/x', 'w'); print('end')";
    assert_eq!(s.prints(code).await, "end\n");
}

async fn writable_mounts_are_inert(s: Subject) {
    let mounts = hello(&s, limits()).await.mounts;
    for path in ["/tmp", "/workspace"] {
        let mount = mounts.iter().find(|mount| mount.path == path);
        assert!(
            mount.is_some_and(|mount| mount.inert && !mount.read_only),
            "{mounts:?}"
        );
    }
}

async fn sizes_are_those_asked_for(s: Subject) {
    let asked = ResourceLimits {
        tmp_bytes: 3 << 20,
        workspace_bytes: 5 << 20,
        ..limits()
    };
    let mounts = hello(&s, asked).await.mounts;
    for (path, bytes) in [("/tmp", 3 << 20), ("/workspace", 5 << 20)] {
        let mount = mounts.iter().find(|mount| mount.path == path);
        assert!(
            mount.is_some_and(|mount| mount.bytes == bytes),
            "{mounts:?}"
        );
    }
}

async fn there_is_no_network(s: Subject) {
    let code = "import socket\nprint([name for _, name in socket.if_nameindex()])\n\
                try: socket.create_connection(('192.0.2.1', 80), 5)\nexcept OSError as e: print(e.errno in (101, 1, 13))";
    let told = s.prints(code).await;
    let lines: Vec<&str> = told.lines().collect();
    let [interfaces, "True"] = lines[..] else {
        panic!("{told}")
    };
    // Tunnels that the kernel puts into each network namespace lead nowhere.
    let harmless = [
        "lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0",
        "ip6gre0",
    ];
    let names = interfaces
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|name| name.trim_matches('\''));
    assert!(
        names.clone().all(|name| harmless.contains(&name)),
        "{interfaces}"
    );
}

async fn there_are_no_devices_but_the_harmless(s: Subject) {
    let code = "import os, stat\nfor top, dirs, files in os.walk('/dev'):\n    for f in files:\n        \
                m = os.lstat(os.path.join(top, f)).st_mode\n        if stat.S_ISBLK(m) or stat.S_ISCHR(m): print(f)";
    let told = s.prints(code).await;
    let harmless = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "console",
    ];
    assert!(told.lines().all(|name| harmless.contains(&name)), "{told}");
}

async fn no_process_of_others_is_seen(s: Subject) {
    let told = s.prints("import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]) < 6, os.getpid() < 20)").await;
    assert_eq!(told, "True True\n");
}

async fn the_environment_tells_nothing(s: Subject) {
    let told = s
        .prints("import os\nprint('\\n'.join(sorted(os.environ)))")
        .await;
    let known = [
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "PATH",
        "PWD",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_CACHE_HOME",
        "LOGNAME",
    ];
    for name in told.lines() {
        let ours = [
            "PYTHON",
            "MPL",
            "R_",
            "OMP_",
            "OPENBLAS_",
            "MKL_",
            "MALLOC_",
        ];
        assert!(
            known.contains(&name) || ours.iter().any(|begin| name.starts_with(begin)),
            "{name}"
        );
    }
}

async fn nothing_of_a_run_is_seen_by_another(s: Subject) {
    let code = "import os\nfound = [os.listdir(d) for d in ('/tmp', '/workspace', '/dev/shm')]\n\
                for d in ('/tmp', '/workspace'): open(d + '/trace', 'w')\nprint(found)";
    for _ in 0..2 {
        assert_eq!(s.prints(code).await, "[[], [], []]\n");
    }
}

async fn the_host_name_is_not_that_of_the_host(s: Subject) {
    assert_eq!(
        s.prints("import socket\nprint(socket.gethostname())").await,
        "sandbox\n"
    );
}
