//! The system calls that no safe wrapper offers. The only module of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::{ForkResult, Pid};

/// Forks. The child runs `child` and exits with its status; it never returns.
///
/// # Errors
///
/// As fork(2).
pub(crate) fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the callers (warden and nursery) are single-threaded processes, so the child owns
    // consistent allocator and lock state.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = child();
            // SAFETY: _exit has no preconditions; destructors and atexit handlers of the parent's
            // state must not run twice.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Forks into new namespaces, as clone(2) with `flags` and without a stack of its own.
///
/// # Errors
///
/// As clone(2).
pub(crate) fn fork_into(flags: libc::c_int, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of the address space and goes on on the
    // same stack, as after fork; the caller is single-threaded, see `fork`. The null pointers
    // are what the kernel takes for "no new stack, no tid addresses, no tls".
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = child();
            // SAFETY: as in `fork`.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Makes a tree of mounts read-only, without set-user-id programs and devices.
///
/// # Errors
///
/// As mount_setattr(2); `ENOSYS` before Linux 5.12.
pub(crate) fn mount_read_only(target: &Path) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_bytes())?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path is a NUL-terminated string and attributes a properly sized structure; both
    // outlive the call, which only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Puts the calling thread and what it starts under a filter of system calls, for good.
///
/// # Errors
///
/// As seccomp(2); `EACCES` without no_new_privs.
pub(crate) fn load_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the structure names `len` instructions that outlive the call; the kernel copies and
    // checks them and writes to none.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Takes over standard input, which the launcher made the control socket, and leaves /dev/null
/// in its place.
///
/// # Errors
///
/// As fcntl(2) and open(2).
pub(crate) fn take_stdin() -> io::Result<OwnedFd> {
    // SAFETY: fcntl with F_DUPFD_CLOEXEC on descriptor 0 has no memory effects.
    let fd = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fd was just returned to us and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    // SAFETY: dup2 onto descriptor 0 replaces the control socket by /dev/null; nothing in this
    // process owns descriptor 0 as an `OwnedFd`.
    if unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Closes every descriptor above standard error: whatever the server's parent left open.
pub(crate) fn close_inherited() {
    // SAFETY: called first thing in the helper process, before anything owns a descriptor
    // above 2.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// Closes every descriptor above standard error but this one: what a child of the nursery inherits is
/// the streams of other containers, whose ends would not show while it lives.
pub(crate) fn close_all_but(kept: &OwnedFd) {
    let kept = libc::c_uint::try_from(std::os::fd::AsRawFd::as_raw_fd(kept)).unwrap_or(0);
    for (first, last) in [
        (3, kept.saturating_sub(1)),
        (kept.saturating_add(1).max(3), u32::MAX),
    ] {
        if first <= last {
            // SAFETY: called in a child that uses none of them and ends by _exit, so that their
            // owners, which are the nursery's, are not dropped here.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Switches on the interface `lo` of the calling process's network namespace (netdevice(7)).
///
/// # Errors
///
/// As socket(2) and ioctl(2).
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut name = [0; libc::IFNAMSIZ];
    name[..2].copy_from_slice(&[b'l', b'o'].map(u8::cast_signed));
    let request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: i16::try_from(libc::IFF_UP).map_err(io::Error::other)?,
        },
    };
    // SAFETY: the descriptor is an open socket, and the request a whole ifreq with the member
    // that SIOCSIFFLAGS reads; it outlives the call, which writes nothing to it.
    let result = unsafe {
        libc::ioctl(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::SIOCSIFFLAGS,
            &raw const request,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks the kernel to kill this process when its parent is gone.
///
/// # Errors
///
/// As prctl(2).
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number by value.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives signals their default action, or none.
pub(crate) fn handle_signals(signals: &[Signal], handler: SigHandler) {
    debug_assert!(matches!(handler, SigHandler::SigDfl | SigHandler::SigIgn));
    for which in signals {
        // SAFETY: neither disposition installs a handler, so no code runs asynchronously.
        let _ = unsafe { nix::sys::signal::signal(*which, handler) };
    }
}

/// A descriptor that becomes readable when the process ends (pidfd_open(2)).
///
/// # Errors
///
/// As pidfd_open(2); `ENOSYS` before Linux 5.3.
pub(crate) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(adopt(i32::try_from(fd).map_err(io::Error::other)?))
}

/// Takes ownership of a descriptor: one that arrived in a control message, or, in a forked
/// child that never returns, this process's copy of one that the parent owns.
pub(crate) fn adopt(fd: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: the descriptor is open in this process and the callers hand it out once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Whether a file has an extended attribute, and it is `1`.
pub(crate) fn is_marked(path: &Path, attribute: &CStr) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut value = [0u8; 1];
    // SAFETY: both names are NUL-terminated and the kernel writes at most `value.len()` bytes to
    // `value`; all three outlive the call.
    let length = unsafe {
        libc::getxattr(
            path.as_ptr(),
            attribute.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    length == 1 && value == *b"1"
}

/// Set before `main`, where standard output is not open.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started without standard output. Rust opens /dev/null in its place
/// before `main`, so this is seen earlier, by a constructor of the program.
pub(crate) fn stdout_was_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn see_stdout() {
    // SAFETY: fcntl with F_GETFD has no memory effects and needs nothing of Rust's runtime.
    let closed = unsafe { libc::fcntl(1, libc::F_GETFD) } < 0;
    STDOUT_CLOSED.store(closed, Ordering::Relaxed);
}

// SAFETY: the section holds pointers to functions that the C library calls before `main`;
// `see_stdout` takes no arguments of those that it is given and returns nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static SEE_STDOUT: extern "C" fn() = see_stdout;
