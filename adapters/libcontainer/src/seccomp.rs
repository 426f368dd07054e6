//! The system calls of a sandbox: reads the reviewed list `images/seccomp/default.toml`, which is
//! part of the program, and compiles it into the filter that the executor loads.
//!
//! The list holds a decision for each call, also for those refused. Only what it allows and what gets
//! an error of its own becomes a rule; all else falls to the default, so that a name libseccomp does
//! not know can never be a refusal that is missing.
//!
//! It does not load the filter, takes no list from outside and knows no way to widen the list for
//! one sandbox. It speaks of the native machine only: a call through another entry ends the process.

mod filter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libseccomp::ScmpSyscall;
use libseccomp::error::SeccompError as LibraryError;
use serde::Deserialize;

pub(crate) use filter::Filter;

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
    /// A rule that could not be made.
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
    /// libseccomp refuses a rule or the whole.
    #[error("libseccomp does not make the filter")]
    Library(#[from] LibraryError),
    /// The compiled filter could not be taken over from libseccomp.
    #[error("the compiled filter cannot be read")]
    Export(#[from] std::io::Error),
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    default: Answer,
    newer: Answer,
    allow: Vec<Group>,
    conditional: Vec<Conditional>,
    errno: Vec<Errno>,
    never: Vec<Group>,
    unneeded: Vec<Group>,
}

/// The error of each call that has no rule, or of those that nobody here has heard of.
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
#[derive(Debug, Deserialize, PartialEq, Eq)]
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

/// The filter for the machine this program runs on.
///
/// Reads 20 KB of text and compiles for some milliseconds: call it once and keep the result.
///
/// # Errors
///
/// The list has a mistake, or the installed libseccomp does not know one of its names.
pub(crate) fn compile() -> Result<Filter, SeccompError> {
    let profile: Profile = toml::from_str(DEFAULT)?;
    profile.check()?;
    filter::compile(
        &profile.rules()?,
        filter::Defaults {
            refused: profile.default.errno,
            newer: profile.newer.errno,
            last: profile.last(),
        },
    )
}

/// libseccomp's number of the call on this machine. It has negative ones for calls of other
/// machines, which make no rule.
fn number(name: &str) -> Option<ScmpSyscall> {
    ScmpSyscall::from_name(name)
        .ok()
        .filter(|call| i32::from(*call) >= 0)
}

/// What becomes of one call.
#[derive(Debug, PartialEq, Eq)]
struct Rule<'a> {
    name: &'a str,
    call: ScmpSyscall,
    /// All must hold.
    when: &'a [Condition],
    /// The error it gets; none when it is allowed.
    errno: Option<u32>,
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
        let default = [
            (
                "default",
                &self.default.reason,
                String::from("all other calls"),
            ),
            ("newer", &self.newer.reason, String::from("newer calls")),
        ];
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
                // libseccomp refuses two conditions on one argument.
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
        for (name, errno) in [
            ("all other calls", default),
            ("newer calls", self.newer.errno),
        ] {
            if !is_error(errno) {
                return Err(SeccompError::Errno {
                    name: name.to_owned(),
                    errno,
                });
            }
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

    /// One rule for each call that passes or gets an error of its own.
    fn rules(&self) -> Result<Vec<Rule<'_>>, SeccompError> {
        let strict = |name: &str| {
            number(name).ok_or_else(|| SeccompError::Unknown {
                name: name.to_owned(),
            })
        };
        let mut rules = Vec::new();
        for group in self.allow.iter().filter(|group| group.applies()) {
            for name in &group.names {
                let call = match number(name) {
                    // What may be unknown falls to the default.
                    None if group.since.is_some() => continue,
                    Some(call) => call,
                    None => strict(name)?,
                };
                rules.push(Rule {
                    name,
                    call,
                    when: &[],
                    errno: None,
                });
            }
        }
        for Conditional { name, when, .. } in &self.conditional {
            rules.push(Rule {
                name,
                call: strict(name)?,
                when,
                errno: None,
            });
        }
        for Errno { names, errno, .. } in &self.errno {
            for name in names {
                rules.push(Rule {
                    name,
                    call: strict(name)?,
                    when: &[],
                    errno: Some(*errno),
                });
            }
        }
        Ok(rules)
    }

    /// The highest number of this machine among all calls of the list.
    fn last(&self) -> u32 {
        let names = self
            .groups()
            .flat_map(|(_, group)| &group.names)
            .chain(self.conditional.iter().map(|rule| &rule.name))
            .chain(self.errno.iter().flat_map(|rule| &rule.names));
        let numbers = names.filter_map(|name| number(name));
        numbers
            .filter_map(|call| u32::try_from(i32::from(call)).ok())
            .max()
            .unwrap_or(0)
    }
}
