//! From rules to the program that the kernel runs for each system call: classic BPF, as
//! libseccomp makes it, behind a preface of ours for calls that are newer than the list.

use std::fs::File;
use std::io::{Read, Seek};
use std::rc::Rc;

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext};
use nix::libc::{self, sock_filter};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Rule, SeccompError};

/// The `AUDIT_ARCH_*` of this machine (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// First number of x32, which shares the architecture with x86_64.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` (seccomp(2)).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Answers to calls that have no rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// The error of calls that the list leaves out.
    pub(super) refused: u32,
    /// The error of calls whose number is above `last`.
    pub(super) newer: u32,
    /// The last number that somebody has looked at.
    pub(super) last: u32,
}

/// A compiled filter; clones share it.
#[derive(Clone)]
pub(crate) struct Filter(Rc<[sock_filter]>);

impl Filter {
    /// The instructions.
    pub(crate) fn program(&self) -> &[sock_filter] {
        &self.0
    }
}

/// Compiles the rules.
pub(super) fn compile(rules: &[Rule<'_>], defaults: Defaults) -> Result<Filter, SeccompError> {
    let mut context = ScmpFilterContext::new(ScmpAction::Errno(defaults.refused.cast_signed()))?;
    context.set_act_badarch(ScmpAction::KillProcess)?;
    // A tree instead of a chain: the kernel walks it for every number when the filter is loaded.
    context.set_ctl_optimize(2)?;
    for rule in rules {
        let action = rule
            .errno
            .map_or(ScmpAction::Allow, |e| ScmpAction::Errno(e.cast_signed()));
        let when: Vec<ScmpArgCompare> = rule
            .when
            .iter()
            .map(|c| {
                let arg = u32::try_from(c.arg).unwrap_or(u32::MAX);
                ScmpArgCompare::new(arg, ScmpCompareOp::MaskedEqual(c.mask), c.equals)
            })
            .collect();
        context.add_rule_conditional_exact(action, rule.call, &when)?;
    }
    // Before libseccomp 2.6 it writes to descriptors only.
    let mut file =
        File::from(memfd_create(c"seccomp", MFdFlags::MFD_CLOEXEC).map_err(std::io::Error::from)?);
    context.export_bpf(&file)?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut program = preface(defaults);
    program.extend(bytes.chunks_exact(8).map(instruction));
    Ok(Filter(program.into()))
}

/// One instruction as the kernel's `struct sock_filter` has it in memory.
fn instruction(bytes: &[u8]) -> sock_filter {
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let k = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    sock_filter {
        code: half(0),
        jt: bytes[2],
        jf: bytes[3],
        k,
    }
}

/// Native numbers above the last known one get an error of their own: a libc that tries a newer
/// call falls back on ENOSYS and fails on EPERM. Jumps are relative, so what follows stays valid.
fn preface(defaults: Defaults) -> Vec<sock_filter> {
    let load = |k| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, k);
    let jump = |how, k, jt, jf| op(libc::BPF_JMP | how | libc::BPF_K, jt, jf, k);
    vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, NATIVE, 0, 4),
        load(NUMBER),
        jump(libc::BPF_JGE, X32, 2, 0),
        jump(libc::BPF_JGT, defaults.last, 0, 1),
        op(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | defaults.newer,
        ),
    ]
}

fn op(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    // Every code fits: they are the sums of the byte-sized constants of linux/bpf_common.h.
    sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf,
        k,
    }
}
