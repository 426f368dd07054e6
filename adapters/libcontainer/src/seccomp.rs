//! The system calls of a sandbox: reads the reviewed list `images/seccomp/default.toml`, which is
//! part of the program, and turns it into the OCI form that libcontainer loads.
//!
//! The list holds a decision for each call, also for those refused. Only what it allows and what gets
//! an error of its own becomes a rule; all else falls to the default, so that a name libcontainer
//! would skip can never be a refusal that is missing.
//!
//! It does not load the filter, takes no list from outside and knows no way to widen the list for
//! one sandbox. It speaks of the native machine only: what comes in through another entry is ended
//! by libseccomp's own answer to a foreign architecture, SIGSYS for the thread.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libseccomp::ScmpSyscall;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompBuilder, LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};
use serde::Deserialize;

/// The reviewed list.
const DEFAULT: &str = include_str!("../../../images/seccomp/default.toml");

/// What a comparison may look at: the half of a register that the kernel reads an `int` from.
const LOW_HALF: u64 = 0xffff_ffff;

/// Why the list was not accepted. Each is a mistake in the file or a library too old for it, none
/// can be caused by a caller.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    /// Not TOML, or a key that has no meaning here.
    #[error("the list of system calls cannot be read")]
    Unreadable(#[from] toml::de::Error),
    /// Nobody said why.
    #[error("the {table} entry of {names} has no reason")]
    NoReason {
        /// Table of the entry.
        table: &'static str,
        /// Its calls.
        names: String,
    },
    /// Two decisions for one call.
    #[error("{name} stands in {first} and again in {second}")]
    Twice {
        /// The call.
        name: String,
        /// Table that has it.
        first: &'static str,
        /// Table that has it too.
        second: &'static str,
    },
    /// libcontainer would skip the name with a warning.
    #[error("libseccomp does not know {name} on {ARCH}")]
    Unknown {
        /// The call.
        name: String,
    },
    /// A condition that tests nothing, never holds or reads more than the kernel does.
    #[error("condition on argument {arg} of {name} is not a comparison within 32 bits")]
    Condition {
        /// The call.
        name: String,
        /// Index of the argument.
        arg: usize,
    },
    /// A refusal that would be none, or a rule that repeats the default, which libseccomp refuses.
    #[error("errno {errno} of {name} is not an error number, or is the default")]
    Errno {
        /// The call or table.
        name: String,
        /// What was given.
        errno: u32,
    },
    /// The OCI form could not be built.
    #[error("the list of system calls has no OCI form")]
    Form(#[from] OciSpecError),
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    default: Answer,
    allow: Vec<Group>,
    conditional: Vec<Conditional>,
    errno: Vec<Errno>,
    never: Vec<Group>,
    unneeded: Vec<Group>,
}

/// The error of each call that has no rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    errno: u32,
    reason: String,
}

/// Calls with one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    reason: String,
    names: Vec<String>,
    /// The only machine that has these calls.
    arch: Option<Machine>,
    /// Release of Linux that brought them: a library may be older than that.
    since: Option<String>,
}

/// A machine whose calls differ from the others'.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
enum Machine {
    #[serde(rename = "x86_64")]
    X86_64,
    #[serde(rename = "aarch64")]
    Aarch64,
}

impl Machine {
    /// Its name as the compiler has it.
    fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// One way for a call to pass; all conditions must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conditional {
    reason: String,
    name: String,
    when: Vec<Condition>,
}

/// `(argument & mask) == equals`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    arg: usize,
    mask: u64,
    equals: u64,
}

/// Calls refused with an error of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Errno {
    reason: String,
    names: Vec<String>,
    errno: u32,
}

/// The list in the form libcontainer takes, for the machine this program runs on.
///
/// Reads and checks 20 KB of text in under half a millisecond: call it once and keep the result.
///
/// # Errors
///
/// The list has a mistake, or the installed libseccomp does not know one of its names.
pub(crate) fn profile() -> Result<LinuxSeccomp, SeccompError> {
    let profile: Profile = toml::from_str(DEFAULT)?;
    profile.check()?;
    profile.build()
}

/// Whether libseccomp has a number for the call on this machine. It has negative ones for calls of
/// other machines, which make no rule.
fn known(name: &str) -> bool {
    ScmpSyscall::from_name(name).is_ok_and(|call| i32::from(call) >= 0)
}

impl Group {
    /// Whether this machine has the calls.
    fn applies(&self) -> bool {
        self.arch.is_none_or(|machine| machine.name() == ARCH)
    }
}

impl Profile {
    /// Each table of names that has groups.
    fn groups(&self) -> impl Iterator<Item = (&'static str, &Group)> {
        [
            ("allow", &self.allow),
            ("never", &self.never),
            ("unneeded", &self.unneeded),
        ]
        .into_iter()
        .flat_map(|(table, groups)| groups.iter().map(move |group| (table, group)))
    }

    /// Refuses a file that a reviewer should not have let pass.
    fn check(&self) -> Result<(), SeccompError> {
        self.check_reasons()?;
        self.check_names()?;
        self.check_values()
    }

    fn check_reasons(&self) -> Result<(), SeccompError> {
        let groups = self
            .groups()
            .map(|(table, group)| (table, &group.reason, group.names.join(", ")));
        let conditional = self
            .conditional
            .iter()
            .map(|rule| ("conditional", &rule.reason, rule.name.clone()));
        let errno = self
            .errno
            .iter()
            .map(|rule| ("errno", &rule.reason, rule.names.join(", ")));
        let default = [(
            "default",
            &self.default.reason,
            String::from("all other calls"),
        )];
        for (table, reason, names) in groups.chain(conditional).chain(errno).chain(default) {
            if reason.trim().is_empty() {
                return Err(SeccompError::NoReason { table, names });
            }
        }
        Ok(())
    }

    /// One decision per call. That keeps the names of `never` out of `allow`, too.
    fn check_names(&self) -> Result<(), SeccompError> {
        let mut seen: BTreeMap<&str, &'static str> = BTreeMap::new();
        let groups = self
            .groups()
            .flat_map(|(table, group)| group.names.iter().map(move |name| (table, name)));
        let errno = self
            .errno
            .iter()
            .flat_map(|rule| rule.names.iter().map(|name| ("errno", name)));
        let conditional = self
            .conditional
            .iter()
            .map(|rule| ("conditional", &rule.name));
        for (second, name) in groups.chain(errno).chain(conditional) {
            match seen.insert(name, second) {
                None => {}
                // A call may have several ways to pass.
                Some("conditional") if second == "conditional" => {}
                Some(first) => {
                    return Err(SeccompError::Twice {
                        name: name.clone(),
                        first,
                        second,
                    });
                }
            }
        }
        Ok(())
    }

    fn check_values(&self) -> Result<(), SeccompError> {
        for rule in &self.conditional {
            let mut args = Vec::with_capacity(rule.when.len());
            for Condition { arg, mask, equals } in &rule.when {
                // libcontainer makes alternatives out of two conditions on one argument.
                let repeated = args.contains(arg);
                let wide = *mask > LOW_HALF || *mask == 0;
                let impossible = equals & !mask != 0;
                if *arg > 5 || repeated || wide || impossible {
                    return Err(SeccompError::Condition {
                        name: rule.name.clone(),
                        arg: *arg,
                    });
                }
                args.push(*arg);
            }
            if args.is_empty() {
                return Err(SeccompError::Condition {
                    name: rule.name.clone(),
                    arg: 0,
                });
            }
        }
        // The kernel cuts larger ones to this, and 0 would tell the caller of success.
        let is_error = |errno: u32| (1..=4095).contains(&errno);
        let default = self.default.errno;
        if !is_error(default) {
            return Err(SeccompError::Errno {
                name: String::from("all other calls"),
                errno: default,
            });
        }
        for Errno { names, errno, .. } in &self.errno {
            if !is_error(*errno) || *errno == default {
                return Err(SeccompError::Errno {
                    name: names.join(", "),
                    errno: *errno,
                });
            }
        }
        Ok(())
    }

    /// The OCI form.
    fn build(&self) -> Result<LinuxSeccomp, SeccompError> {
        let strict = |name: &String| {
            if known(name) {
                Ok(())
            } else {
                Err(SeccompError::Unknown { name: name.clone() })
            }
        };
        let mut allowed = Vec::new();
        for group in self.allow.iter().filter(|group| group.applies()) {
            for name in &group.names {
                // What may be unknown stays out: libcontainer would skip it too, with a warning for
                // each container.
                if group.since.is_none() {
                    strict(name)?;
                } else if !known(name) {
                    continue;
                }
                allowed.push(name.clone());
            }
        }
        let mut rules = vec![rule(allowed, LinuxSeccompAction::ScmpActAllow, None, None)?];
        for Conditional { name, when, .. } in &self.conditional {
            strict(name)?;
            let args = when
                .iter()
                .map(Condition::build)
                .collect::<Result<Vec<_>, _>>()?;
            let action = LinuxSeccompAction::ScmpActAllow;
            rules.push(rule(vec![name.clone()], action, None, Some(args))?);
        }
        for Errno { names, errno, .. } in &self.errno {
            names.iter().try_for_each(strict)?;
            let action = LinuxSeccompAction::ScmpActErrno;
            rules.push(rule(names.clone(), action, Some(*errno), None)?);
        }
        Ok(LinuxSeccompBuilder::default()
            .default_action(LinuxSeccompAction::ScmpActErrno)
            .default_errno_ret(self.default.errno)
            .architectures(vec![Arch::ScmpArchNative])
            .syscalls(rules)
            .build()?)
    }
}

impl Condition {
    /// libcontainer 0.7 takes `value` for what must be left and `value_two` for the mask. runc and
    /// crun read them the other way round, as libseccomp orders its operands: this form is for
    /// libcontainer only. Read the wrong way the condition of `clone` holds for any flags, so a
    /// test loads the filter and fails should a release of libcontainer change its reading.
    fn build(&self) -> Result<LinuxSeccompArg, OciSpecError> {
        LinuxSeccompArgBuilder::default()
            .index(self.arg)
            .op(LinuxSeccompOperator::ScmpCmpMaskedEq)
            .value(self.equals)
            .value_two(self.mask)
            .build()
    }
}

/// One rule for all the calls of `names`.
fn rule(
    names: Vec<String>,
    action: LinuxSeccompAction,
    errno: Option<u32>,
    args: Option<Vec<LinuxSeccompArg>>,
) -> Result<LinuxSyscall, OciSpecError> {
    let mut builder = LinuxSyscallBuilder::default().names(names).action(action);
    if let Some(errno) = errno {
        builder = builder.errno_ret(errno);
    }
    if let Some(args) = args {
        builder = builder.args(args);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
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
        default = { errno = 1, reason = "r" }
        allow = [{ reason = "r", names = ["read"] }]
        conditional = [{ reason = "r", name = "clone", when = [{ arg = 0, mask = 0x10, equals = 0 }] }]
        never = [{ reason = "r", names = ["mount"] }]
    "#;

    fn verdict(list: &str) -> Result<LinuxSeccomp, SeccompError> {
        let profile: Profile = toml::from_str(list)?;
        profile.check()?;
        profile.build()
    }

    fn spoilt(from: &str, to: &str) -> SeccompError {
        assert!(SOUND.contains(from), "{from}");
        verdict(&SOUND.replace(from, to)).unwrap_err()
    }

    #[test]
    fn default_is_eperm_on_the_native_machine_only() {
        let profile = profile().unwrap();
        assert_eq!(profile.default_action(), LinuxSeccompAction::ScmpActErrno);
        assert_eq!(profile.default_errno_ret(), Some(1));
        assert_eq!(profile.architectures(), &Some(vec![Arch::ScmpArchNative]));
        assert!(profile.flags().is_none());
    }

    #[test]
    fn rules_are_one_list_and_these() {
        let profile = profile().unwrap();
        let (whole, special): (Vec<_>, Vec<_>) = profile
            .syscalls()
            .as_ref()
            .unwrap()
            .iter()
            .partition(|rule| {
                rule.action() == LinuxSeccompAction::ScmpActAllow && rule.args().is_none()
            });
        let special: Vec<String> = special
            .iter()
            .map(|rule| {
                let args: Vec<String> = rule
                    .args()
                    .iter()
                    .flatten()
                    .map(|arg| {
                        assert_eq!(arg.op(), LinuxSeccompOperator::ScmpCmpMaskedEq);
                        let mask = arg.value_two().unwrap();
                        format!("a{}&{mask:#x}=={}", arg.index(), arg.value())
                    })
                    .collect();
                let errno = rule
                    .errno_ret()
                    .map_or(String::new(), |errno| errno.to_string());
                format!("{} {}{errno}", rule.names().join(","), args.join(" "))
            })
            .collect();
        assert_eq!(
            special,
            [
                "clone a0&0x7e020000==0",
                "socket a0&0xffffffff==1",
                "socket a0&0xfffffff7==2 a1&0xc==0 a2&0xffffffff==0",
                "socket a0&0xfffffff7==2 a1&0xc==0 a2&0xffffffff==6",
                "socket a0&0xfffffff7==2 a1&0xc==0 a2&0xffffffff==17",
                "socket a0&0xffffffff==16 a2&0xffffffff==0",
                "socketpair a0&0xffffffff==1",
                "personality a0&0xffffffff==4294967295",
                "clone3 38",
            ]
        );
        assert_eq!(whole.len(), 1);
    }

    #[test]
    fn refused_calls_make_no_rule() {
        let profile = profile().unwrap();
        let ruled: BTreeSet<&String> = profile
            .syscalls()
            .iter()
            .flatten()
            .flat_map(LinuxSyscall::names)
            .collect();
        let list = reviewed();
        let refused: Vec<&String> = list
            .never
            .iter()
            .chain(&list.unneeded)
            .flat_map(|group| &group.names)
            .collect();
        assert!(refused.len() > 100);
        for name in refused {
            assert!(!ruled.contains(name), "{name}");
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
        let rules = verdict(&newer).unwrap().syscalls().clone().unwrap();
        assert_eq!(rules[0].names(), &["write"]);
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
        let rules = verdict(&list).unwrap().syscalls().clone().unwrap();
        assert_eq!(rules[0].names(), &["read"]);
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
            let own =
                format!("errno = [{{ reason = \"r\", names = [\"clone3\"], errno = {errno} }}]");
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
                    libcontainer::seccomp::initialize_seccomp(&profile().unwrap()).unwrap();
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
}
