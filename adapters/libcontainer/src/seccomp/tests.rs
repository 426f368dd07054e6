//! What the list and the filter made of it promise.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use libseccomp::ScmpArch;
use nix::errno::Errno as Os;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn reviewed() -> Profile {
    toml::from_str(DEFAULT).unwrap()
}

/// A list in which all is well, to be spoilt by a replacement.
const SOUND: &str = r#"
    errno = []
    unneeded = []
    newer = { errno = 38, reason = "r" }
    default = { errno = 1, reason = "r" }
    allow = [{ reason = "r", names = ["read"] }]
    conditional = [{ reason = "r", name = "clone", when = [{ arg = 0, mask = 0x10, equals = 0 }] }]
    never = [{ reason = "r", names = ["mount"] }]
"#;

/// Names of the rules made of a list.
fn verdict(list: &str) -> Result<Vec<String>, SeccompError> {
    let profile: Profile = toml::from_str(list)?;
    profile.check()?;
    Ok(profile
        .rules()?
        .iter()
        .map(|rule| rule.name.to_owned())
        .collect())
}

fn spoilt(from: &str, to: &str) -> SeccompError {
    assert!(SOUND.contains(from), "{from}");
    verdict(&SOUND.replace(from, to)).unwrap_err()
}

#[test]
fn rules_are_one_list_and_these() {
    let list = reviewed();
    let rules = list.rules().unwrap();
    let special: Vec<String> = rules
        .iter()
        .filter(|rule| rule.errno.is_some() || !rule.when.is_empty())
        .map(|rule| {
            let when: Vec<String> = rule
                .when
                .iter()
                .map(|c| format!("a{}&{:#x}=={}", c.arg, c.mask, c.equals))
                .collect();
            let errno = rule.errno.map_or(String::new(), |errno| errno.to_string());
            format!("{} {}{errno}", rule.name, when.join(" "))
        })
        .collect();
    assert_eq!(
        special,
        [
            "clone a0&0x7e020000==0",
            "socket a0&0xffffffff==1 a1&0xf==1",
            "socket a0&0xffffffff==1 a1&0xf==2",
            "socket a0&0xffffffff==1 a1&0xf==5",
            "socket a0&0xfffffff7==2 a1&0xf==1 a2&0xffffffff==0",
            "socket a0&0xfffffff7==2 a1&0xf==1 a2&0xffffffff==6",
            "socket a0&0xfffffff7==2 a1&0xf==2 a2&0xffffffff==0",
            "socket a0&0xfffffff7==2 a1&0xf==2 a2&0xffffffff==17",
            "socket a0&0xffffffff==16 a1&0xe==2 a2&0xffffffff==0",
            "socketpair a0&0xffffffff==1 a1&0xf==1",
            "socketpair a0&0xffffffff==1 a1&0xf==2",
            "socketpair a0&0xffffffff==1 a1&0xf==5",
            "personality a0&0xffffffff==4294967295",
            "clone3 38",
        ]
    );
}

/// What a call gets: the filter run by hand as the kernel runs it (linux/bpf_common.h), so that
/// machines and calls can be asked that this test cannot or must not make.
fn answer(filter: &Filter, architecture: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0u64.to_ne_bytes());
    args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
    let program = filter.program();
    let (mut at, mut a) = (0usize, 0u32);
    loop {
        let op = program[at];
        at += 1;
        let taken = match u32::from(op.code) {
            // ld [k], and k, ret k, ja k, jeq, jgt, jge, jset
            0x20 => {
                let from = op.k as usize;
                a = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                continue;
            }
            0x54 => {
                a &= op.k;
                continue;
            }
            0x06 => return op.k,
            0x05 => {
                at += op.k as usize;
                continue;
            }
            0x15 => a == op.k,
            0x25 => a > op.k,
            0x35 => a >= op.k,
            0x45 => a & op.k != 0,
            other => panic!("unexpected instruction {other:#x}"),
        };
        at += usize::from(if taken { op.jt } else { op.jf });
    }
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
const I386: u32 = 0x4000_0003;
const X32: u32 = 0x4000_0000;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0000 + 38;

#[test]
fn each_number_gets_what_the_list_says_and_foreign_ones_end_the_process() {
    let filter = compile().unwrap();
    let list = reviewed();
    let rules = list.rules().unwrap();
    let last = list.last();
    assert!((440..1000).contains(&last), "{last}");
    for number in 0..2048u32 {
        let own: Vec<&Rule<'_>> = rules
            .iter()
            .filter(|rule| i32::from(rule.call) == number.cast_signed())
            .collect();
        let got = answer(&filter, NATIVE, number, [0; 6]);
        match own.as_slice() {
            [] if number > last => assert_eq!(got, ENOSYS, "{number}"),
            [] => assert_eq!(got, EPERM, "{number}"),
            [
                Rule {
                    errno: Some(errno), ..
                },
            ] => assert_eq!(got, 0x0005_0000 + errno, "{number}"),
            [Rule { when: [], .. }] => assert_eq!(got, ALLOW, "{number}"),
            // The next test asks them.
            _ => {}
        }
        assert_eq!(
            answer(&filter, I386, number, [0; 6]),
            KILL_PROCESS,
            "i386 {number}"
        );
        if cfg!(target_arch = "x86_64") {
            assert_eq!(
                answer(&filter, NATIVE, number | X32, [0; 6]),
                KILL_PROCESS,
                "x32 {number}"
            );
        }
    }
}

/// Masked comparisons read the low halves, in the right order of mask and value.
#[test]
fn conditions_hold_for_what_the_kernel_reads_and_for_nothing_else() {
    let filter = compile().unwrap();
    let high = 0xdead_beef_0000_0000_u64;
    let call = |name: &str, args: &[u64]| {
        let number = u32::try_from(i32::from(number(name).unwrap())).unwrap();
        let mut low = [0; 6];
        low[..args.len()].copy_from_slice(args);
        let answers =
            [low, low.map(|arg| arg | high)].map(|args| answer(&filter, NATIVE, number, args));
        assert_eq!(answers[0], answers[1], "{name} {args:?}: high bits decide");
        answers[0]
    };
    for args in [
        [1, 1, 0],
        [1, 5, 99],
        [2, 1, 0],
        [2, 1, 6],
        [10, 2, 17],
        [2, 0x8_0801, 6],
        [10, 0x8_0802, 0],
        [16, 3, 0],
        [16, 0x8_0002, 0],
    ] {
        assert_eq!(call("socket", &args), ALLOW, "{args:?}");
    }
    // Raw of each family, with and without flags, SOCK_PACKET, rdm, DCCP, and types that do not
    // exist.
    for family in [1, 2, 10] {
        for kind in [0, 3, 4, 6, 7, 8, 9, 10, 11, 15, 0x8_0003, 0x8_080a] {
            for protocol in [0, 6, 17] {
                let args = [family, kind, protocol];
                assert_eq!(call("socket", &args), EPERM, "{args:?}");
            }
            let pair = call("socketpair", &[family, kind]);
            assert_eq!(pair, EPERM, "{family} {kind:#x}");
        }
    }
    // Raw, packet, VSOCK, ALG, XDP, netlink audit, ICMP, SCTP, Bluetooth.
    for args in [
        [2, 3, 255],
        [17, 3, 0],
        [40, 1, 0],
        [38, 5, 0],
        [44, 3, 0],
        [16, 3, 9],
        [2, 2, 1],
        [2, 1, 132],
        [31, 3, 1],
        [0, 1, 0],
        [2, 5, 0],
        [10, 1, 17],
        [16, 1, 0],
        [16, 10, 0],
    ] {
        assert_eq!(call("socket", &args), EPERM, "{args:?}");
    }
    for kind in [1, 2, 5, 0x8_0801] {
        assert_eq!(call("socketpair", &[1, kind]), ALLOW, "{kind}");
        assert_eq!(call("socketpair", &[2, kind]), EPERM, "{kind}");
    }
    assert_eq!(call("personality", &[0xffff_ffff]), ALLOW);
    assert_eq!(call("personality", &[0x0004_0000]), EPERM);
    // What fork and pthread_create ask for; then each namespace.
    for flags in [17, 0x0120_0011, 0x003d_0f00] {
        assert_eq!(call("clone", &[flags]), ALLOW, "{flags:#x}");
    }
    for flags in [
        0x0002_0000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ] {
        assert_eq!(call("clone", &[17 | flags]), EPERM, "{flags:#x}");
    }
}

#[test]
fn refused_calls_make_no_rule() {
    let list = reviewed();
    let rules = list.rules().unwrap();
    let ruled: BTreeSet<&str> = rules.iter().map(|rule| rule.name).collect();
    let refused: Vec<&String> = list
        .never
        .iter()
        .chain(&list.unneeded)
        .flat_map(|group| &group.names)
        .collect();
    assert!(refused.len() > 100);
    for name in refused {
        assert!(!ruled.contains(name.as_str()), "{name}");
    }
}

/// The barriers count on these, whoever edits the file.
#[test]
fn never_has_what_the_barriers_count_on() {
    let list = reviewed();
    let never: BTreeSet<&str> = list
        .never
        .iter()
        .flat_map(|group| &group.names)
        .map(String::as_str)
        .collect();
    for name in [
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "fsopen",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "unshare",
        "setns",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "process_madvise",
        "pidfd_getfd",
        "kcmp",
        "add_key",
        "request_key",
        "keyctl",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "kexec_file_load",
        "reboot",
        "clock_settime",
        "settimeofday",
        "adjtimex",
        "clock_adjtime",
        "swapon",
        "acct",
        "quotactl",
        "syslog",
        "sethostname",
        "open_by_handle_at",
        "name_to_handle_at",
        "fanotify_init",
        "inotify_init1",
        "mbind",
        "set_mempolicy",
        "move_pages",
        "migrate_pages",
        "splice",
        "tee",
        "vmsplice",
        "memfd_secret",
        "map_shadow_stack",
        "statmount",
        "listmount",
        "mknodat",
        "mknod",
        "modify_ldt",
        "iopl",
        "ioperm",
        "uselib",
        "lookup_dcookie",
        "setuid",
        "setgroups",
        "capset",
    ] {
        assert!(never.contains(name), "{name}");
    }
}

/// Names by machine, as libseccomp numbers them.
fn numbered(machine: ScmpArch) -> BTreeSet<String> {
    (0..1024)
        .filter_map(|number| ScmpSyscall::from(number).get_name_by_arch(machine).ok())
        .collect()
}

#[test]
fn each_call_libseccomp_knows_is_decided() {
    let list = reviewed();
    let decided: BTreeSet<&String> = list
        .groups()
        .flat_map(|(_, group)| &group.names)
        .chain(list.conditional.iter().map(|rule| &rule.name))
        .chain(list.errno.iter().flat_map(|rule| &rule.names))
        .collect();
    for machine in [ScmpArch::X8664, ScmpArch::Aarch64] {
        let names = numbered(machine);
        assert!(names.len() > 300, "{machine:?}");
        let open: Vec<_> = names
            .iter()
            .filter(|name| !decided.contains(name))
            .collect();
        assert!(open.is_empty(), "{machine:?}: {open:?}");
    }
}

#[test]
fn each_name_exists_where_it_is_said_to() {
    let list = reviewed();
    for (machine, scmp) in [
        (Machine::X86_64, ScmpArch::X8664),
        (Machine::Aarch64, ScmpArch::Aarch64),
    ] {
        let numbered = numbered(scmp);
        for (table, group) in list.groups().filter(|(_, group)| group.since.is_none()) {
            let here = group.arch.is_none_or(|only| only == machine);
            for name in &group.names {
                assert_eq!(numbered.contains(name), here, "{table} {name} {machine:?}");
            }
        }
    }
}

#[test]
fn a_group_without_reason_is_refused() {
    assert!(verdict(SOUND).is_ok());
    for table in [
        "allow = [{ ",
        "never = [{ ",
        "conditional = [{ ",
        "default = { errno = 1, ",
        "newer = { errno = 38, ",
    ] {
        let from = format!("{table}reason = \"r\"");
        let error = spoilt(&from, &format!("{table}reason = \" \""));
        assert!(
            matches!(error, SeccompError::NoReason { .. }),
            "{table} {error}"
        );
    }
}

#[test]
fn a_call_has_one_decision() {
    for (from, to) in [
        ("[\"read\"]", "[\"read\", \"read\"]"),
        ("[\"read\"]", "[\"mount\"]"),
        ("[\"read\"]", "[\"clone\"]"),
        ("\"clone\"", "\"mount\""),
    ] {
        let error = spoilt(from, to);
        assert!(matches!(error, SeccompError::Twice { .. }), "{to} {error}");
    }
}

#[test]
fn an_unknown_name_is_refused_unless_it_may_be() {
    let error = spoilt("\"read\"", "\"raed\"");
    assert!(matches!(error, SeccompError::Unknown { name } if name == "raed"));
    let error = spoilt("\"clone\"", "\"clown\"");
    assert!(matches!(error, SeccompError::Unknown { name } if name == "clown"));
    // A call of 32-bit machines: libseccomp has a name for it and no number here.
    assert!(matches!(
        spoilt("\"read\"", "\"socketcall\""),
        SeccompError::Unknown { .. }
    ));

    let newer = SOUND.replace("[\"read\"]", "[\"raed\", \"write\"], since = \"9.9\"");
    assert_eq!(verdict(&newer).unwrap(), ["write", "clone"]);
}

#[test]
fn calls_of_another_machine_stay_out() {
    let other = if ARCH == "x86_64" {
        "aarch64"
    } else {
        "x86_64"
    };
    let list = SOUND.replace(
        "allow = [",
        &format!("allow = [{{ reason = \"r\", names = [\"odd\"], arch = \"{other}\" }}, "),
    );
    assert_eq!(verdict(&list).unwrap(), ["read", "clone"]);
}

#[test]
fn a_condition_compares_within_the_low_half() {
    for to in [
        "arg = 0, mask = 0x100000010, equals = 0",
        "arg = 0, mask = 0, equals = 0",
        "arg = 0, mask = 0x10, equals = 0x20",
        "arg = 6, mask = 0x10, equals = 0",
        "arg = 0, mask = 0x10, equals = 0 }, { arg = 0, mask = 0x20, equals = 0",
    ] {
        let error = spoilt("arg = 0, mask = 0x10, equals = 0", to);
        assert!(
            matches!(error, SeccompError::Condition { .. }),
            "{to} {error}"
        );
    }
    let error = spoilt("[{ arg = 0, mask = 0x10, equals = 0 }]", "[]");
    assert!(matches!(error, SeccompError::Condition { .. }), "{error}");
}

#[test]
fn an_errno_is_an_error_of_its_own() {
    for errno in [0, 1, 4096] {
        let own = format!("errno = [{{ reason = \"r\", names = [\"clone3\"], errno = {errno} }}]");
        let error = spoilt("errno = []", &own);
        assert!(
            matches!(error, SeccompError::Errno { .. }),
            "{errno} {error}"
        );
    }
    assert!(matches!(
        spoilt("errno = 1,", "errno = 0,"),
        SeccompError::Errno { .. }
    ));
}

#[test]
fn a_misspelt_key_is_refused() {
    assert!(matches!(
        spoilt("names = [\"mount\"]", "name = [\"mount\"]"),
        SeccompError::Unreadable(_)
    ));
}

/// What the sandbox would see, tried in a thread: a filter holds for the thread that loads it
/// and for what that starts.
fn tried<T: Send>(filtered: bool, attempt: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let attempt = scope.spawn(|| {
            if filtered {
                prctl::set_no_new_privs().unwrap();
                crate::sys::load_filter(compile().unwrap().program()).unwrap();
            }
            attempt()
        });
        attempt.join().unwrap()
    })
}

/// Each of these answers otherwise without the filter, for root and for others. The one on
/// netlink also tells whether mask and value are read in the order meant here.
#[test]
fn loaded_filter_refuses_what_the_kernel_would_do() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let stream = SockType::Stream;
    let family = |family, kind, protocol: Option<SockProtocol>| {
        socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol).err()
    };
    let attempts = || {
        [
            ("unshare", unshare(CloneFlags::CLONE_FILES).err()),
            ("mkfifo", mkfifo(&fifo, Mode::S_IRWXU).err()),
            ("unix raw", family(AddressFamily::Unix, SockType::Raw, None)),
            ("vsock", family(AddressFamily::Vsock, stream, None)),
            ("alg", family(AddressFamily::Alg, SockType::SeqPacket, None)),
            (
                "audit",
                family(
                    AddressFamily::Netlink,
                    SockType::Raw,
                    Some(SockProtocol::NetlinkAudit),
                ),
            ),
            (
                "icmp",
                family(
                    AddressFamily::Inet,
                    SockType::Datagram,
                    Some(SockProtocol::Icmp),
                ),
            ),
            (
                "pair",
                socketpair(AddressFamily::Inet, stream, None, SockFlag::empty()).err(),
            ),
        ]
    };
    for (name, error) in tried(false, attempts) {
        assert_ne!(error, Some(Os::EPERM), "{name} without a filter");
    }
    fs::remove_file(&fifo).unwrap();
    for (name, error) in tried(true, attempts) {
        assert_eq!(error, Some(Os::EPERM), "{name}");
    }
}

#[test]
fn loaded_filter_lets_programs_work() {
    let directory = tempfile::tempdir().unwrap();
    tried(true, || {
        assert_eq!(thread::spawn(|| 42).join().unwrap(), 42);
        let echo = Command::new("/bin/sh")
            .args(["-c", "echo $((40 + 2)) | cat"])
            .output()
            .unwrap();
        assert_eq!(echo.stdout, b"42\n", "{echo:?}");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::write(&from, "text").unwrap();
        fs::copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "text");
        UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    });
}
