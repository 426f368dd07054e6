"""Tries what a sandbox must refuse, and prints as one JSON object what each attempt got: the name of an errno or of the
signal that ended it, or "done".

Runs inside the sandbox, and with the argument `control` outside, where most of it must work: a refusal that one gets
everywhere proves nothing. The control has to run as root, first in a pid namespace and with a /proc of its own; each
attempt then gets namespaces that it may spoil. Nothing here changes the host even so.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import stat
import sys

CONTROL = sys.argv[1:] == ["control"]
X86 = platform.machine() == "x86_64"
# Numbers of the system calls: on x86-64, and on machines with the common table (ARM64 and later ones).
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "getpid": (39, 172),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "setfsuid": (122, 151),
    "setgroups": (116, 159),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setresuid": (117, 147),
    "settimeofday": (164, 170),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "socket": (41, 198),
    "splice": (275, 76),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
attempts = {}


def call(name, *arguments):
    return numbered(NUMBERS[name][0 if X86 else 1], *arguments)


def numbered(number, *arguments):
    """System call `number`; whole registers, so that bits above the 32nd arrive as well."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def attempt(name):
    def keep(function):
        attempts[name] = function
        return function

    return keep


def simple(name, *arguments, label=None):
    """An attempt that is one system call."""
    if NUMBERS[name][0 if X86 else 1] is not None:
        attempts[label or name] = lambda: call(name, *arguments)


HERE = -100  # AT_FDCWD
HIGH = 1 << 32
NEW = {
    "mnt": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
FAMILIES = {
    "key": 15,
    "packet": 17,
    "rds": 21,
    "can": 29,
    "tipc": 30,
    "bluetooth": 31,
    "alg": 38,
    "vsock": 40,
    "qipcrtr": 42,
    "smc": 43,
    "xdp": 44,
}

# -- mounts
simple("mount", b"none", b"/tmp", b"tmpfs", 0, None)
simple("umount2", b"/proc/keys", 0)
simple("fsopen", b"tmpfs", 0)
simple("fsmount", -1, 0, 0)
simple("open_tree", HERE, b"/", 1)
simple("move_mount", HERE, b"/tmp", HERE, b"/dev", 0)
simple("mount_setattr", HERE, b"/", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)
simple("pivot_root", b".", b".")
simple("chroot", b"/tmp")

# -- namespaces
for kind, flag in [*NEW.items(), ("time", 0x80)]:
    attempts[f"unshare {kind}"] = lambda flag=flag: os_unshare(flag)
for kind, flag in NEW.items():
    attempts[f"clone {kind}"] = lambda flag=flag: clone(flag)
attempts["clone user, high bit"] = lambda: clone(NEW["user"] | HIGH)
attempts["clone3"] = lambda: reap(call("clone3", (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD), 88))


def os_unshare(flag):
    if libc.unshare(flag) == -1:
        raise OSError(ctypes.get_errno(), "unshare")


def clone(flag):
    reap(call("clone", flag | signal.SIGCHLD, None, None, None, None))


def reap(child):
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@attempt("setns user")
def _():
    if libc.setns(os.open("/proc/self/ns/user", os.O_RDONLY), 0) == -1:
        raise OSError(ctypes.get_errno(), "setns")


# -- other processes; 1 is the agent, and in the control the first process of its namespace
simple("ptrace", 0, 0, None, None, label="ptrace traceme")
simple("ptrace", 0x4206, 1, None, None, label="ptrace seize 1")
simple("process_vm_readv", 1, None, 0, None, 0, 0)
simple("process_vm_writev", 1, None, 0, None, 0, 0)
simple("process_madvise", -1, None, 0, 0, 0)
simple("kcmp", os.getpid(), os.getpid(), 1, 0, 0)
attempts["pidfd_getfd"] = lambda: call("pidfd_getfd", call("pidfd_open", 1, 0), 0, 0)

# -- the kernel
simple("add_key", b"user", b"forge", b"x", 1, -1)
simple("request_key", b"user", b"forge", None, 0)
simple("keyctl", 0, -3, 0)
simple("bpf", 0, None, 0)
simple("perf_event_open", (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0)
simple("userfaultfd", 0)
simple("userfaultfd", 1, label="userfaultfd, user mode")
simple("io_uring_setup", 1, (ctypes.c_uint32 * 30)())
simple("kexec_load", 0, 0, None, 1 << 15)
simple("kexec_file_load", -1, -1, 0, None, 0)
simple("init_module", None, 0, b"")
simple("finit_module", -1, b"", 0)
simple("delete_module", b"no such module", 0)
simple("clock_settime", 0, (ctypes.c_long * 2)(0, -1))
simple("settimeofday", None, None)
simple("adjtimex", None)
simple("clock_adjtime", 0, None)
simple("reboot", 1, 2, 3, None)
simple("swapon", b"/no such file", 0)
simple("acct", b"/no such file")
simple("quotactl", 0x800001 << 8, None, 0, None)
simple("syslog", 10, None, 0)
simple("iopl", 0)
simple("ioperm", 0x80, 1, 1)
simple("modify_ldt", 0, None, 0)
simple("uselib", b"/no such file")
simple("open_by_handle_at", -1, (ctypes.c_uint32 * 8)(), 0)
simple("name_to_handle_at", HERE, b"/", (ctypes.c_uint32 * 40)(128), (ctypes.c_int * 1)(), 0)
simple("fanotify_init", 0, 0)
simple("inotify_init")
simple("inotify_init1", 0)
simple("personality", 0x0040000)
simple("splice", -1, None, -1, None, 1, 0)
simple("vmsplice", -1, None, 0, 0)
simple("memfd_secret", 0)
simple("mbind", None, 0, 0, None, 0, 0)
simple("set_mempolicy", 0, None, 0)
simple("move_pages", 0, 0, None, None, None, 0)
simple("sethostname", b"other", 5)
simple("shmget", 0, 4096, 0o600)

# -- identity
simple("setuid", 0)
simple("setresuid", 0, 0, 0)
simple("setgroups", 0, None)
simple("setfsuid", 0)
simple("mknodat", HERE, b"/tmp/block", stat.S_IFBLK | 0o600, 8 << 8, label="mknod block")
simple("mknodat", HERE, b"/tmp/char", stat.S_IFCHR | 0o600, 1 << 8 | 1, label="mknod char")

# -- sockets
for family, number in FAMILIES.items():
    kind = socket.SOCK_RAW if family in ("packet", "can", "key", "xdp", "bluetooth") else socket.SOCK_DGRAM
    kind = socket.SOCK_SEQPACKET if family in ("alg", "rds") else kind
    simple("socket", number, kind, 2 if family == "key" else 0, label=f"socket {family}")
    simple("socket", number | HIGH, kind, 2 if family == "key" else 0, label=f"socket {family}, high bit")
simple("socket", socket.AF_INET, socket.SOCK_RAW, 1, label="socket raw icmp")
simple("socket", socket.AF_INET | HIGH, socket.SOCK_RAW, 1 | HIGH, label="socket raw icmp, high bits")
simple("socket", socket.AF_INET, socket.SOCK_DGRAM, 1, label="socket ping")
simple("socket", socket.AF_UNIX, socket.SOCK_RAW, 0, label="socket unix raw")
simple("socket", socket.AF_INET, socket.SOCK_RAW, 17, label="socket raw udp")
simple("socket", socket.AF_INET6, socket.SOCK_RAW, 6, label="socket raw tcp, version 6")
simple("socket", socket.AF_INET, 10, 0, label="socket of type packet")
for name, number in [("audit", 9), ("netfilter", 12)]:
    simple("socket", socket.AF_NETLINK, socket.SOCK_RAW, number, label=f"netlink {name}")
    simple("socket", socket.AF_NETLINK, socket.SOCK_RAW, number | HIGH, label=f"netlink {name}, high bit")

# -- other ways in
attempts["unknown call"] = lambda: numbered(999)
if X86:
    attempts["x32 getpid"] = lambda: numbered(0x40000000 | NUMBERS["getpid"][0])


@attempt("int 0x80 getpid")
def _():
    if not X86:
        raise OSError(errno.ENOSYS, "there is none on this machine")
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()


# -- files of the kernel, opened for writing and not written to
for path in [
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/1/mem",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/etc/passwd",
    "/usr/bin/env",
]:
    attempts[f"write {path}"] = lambda path=path: os.close(os.open(path, os.O_WRONLY))


# Directories where an unnamed file is made, which leaves nothing behind in the control.
for path in ["/", "/usr", "/usr/bin", "/etc", "/var/tmp"]:
    attempts[f"create in {path}"] = lambda path=path: os.close(os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600))

# -- what must not be read
for path in ["/proc/1/environ", "/proc/1/maps", "/proc/1/mem", "/etc/shadow", "/dev/kmsg", "/dev/ptmx", "/proc/kmsg"]:
    attempts[f"read {path}"] = lambda path=path: os.close(os.open(path, os.O_RDONLY))
for path in ["/proc/1/fd", "/root", "/home", "/var", "/srv", "/opt", "/boot", "/mnt", "/media", "/sys/fs/cgroup"]:
    attempts[f"list {path}"] = lambda path=path: os.listdir(path)
for path in ["/proc/1/root", "/proc/1/cwd", "/proc/1/exe"]:
    attempts[f"link {path}"] = lambda path=path: os.readlink(path)


def outcome(function):
    """What an attempt got, in a process that it may spoil or lose."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = b""
        try:
            if CONTROL and libc.unshare(NEW["mnt"] | NEW["uts"] | NEW["ipc"] | NEW["net"]) == -1:
                raise OSError(ctypes.get_errno(), "the control has to be root")
            try:
                function()
                told = b"done"
            except OSError as error:
                told = errno.errorcode.get(error.errno, str(error.errno)).encode()
        except BaseException as error:
            told = repr(error).encode()
        finally:
            os.write(writer, told)
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return signal.Signals(status).name if os.WIFSIGNALED(status) else told


print(json.dumps({name: outcome(function) for name, function in attempts.items()}))
