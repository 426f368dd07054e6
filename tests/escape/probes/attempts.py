"""What the probes of all barriers share: they try what a sandbox must refuse, and print one JSON object that has for
each attempt what it got (the name of an errno or of the signal that ended it, or "done"), what it must get, and why
there is no control where there is none.

A probe runs inside the sandbox, and with the argument `control` outside, where most of it must work: a refusal that
one gets everywhere proves nothing. The control runs as root, first in a pid namespace and with a /proc of its own; each
attempt then gets namespaces that it may spoil. Nothing in a probe changes the host even so.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys

CONTROL = sys.argv[1:] == ["control"]
SYS_RESOURCE = 24
X86 = platform.machine() == "x86_64"
# Numbers of the system calls: on x86-64, and on machines with the common table (ARM64 and later ones).
NUMBERS = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "getpid": (39, 172),
    "pidfd_open": (434, 434),
    "mount": (165, 40),
    "umount2": (166, 39),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "inotify_rm_watch": (255, 28),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "memfd_secret": (447, 447),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "setgroups": (116, 159),
    "capset": (126, 91),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "personality": (135, 92),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "listns": (470, 470),
    "map_shadow_stack": (453, 453),
    "cachestat": (451, 451),
    "lsm_set_self_attr": (460, 460),
    "file_setattr": (469, 469),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_notify": (244, 184),
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "get_mempolicy": (239, 236),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "mlockall": (151, 230),
    "munlockall": (152, 231),
    "mlock2": (325, 284),
    "pkey_alloc": (330, 289),
    "pkey_mprotect": (329, 288),
    "mincore": (27, 232),
    "remap_file_pages": (216, 234),
    "readahead": (187, 213),
    "ioprio_get": (252, 31),
    "ioprio_set": (251, 30),
    "sched_setattr": (314, 274),
    "sched_getattr": (315, 275),
}
# Numbers of 32-bit x86, and that of the call that all sockets once went through.
I386 = {
    "clone": 120,
    "getpid": 20,
    "mount": 21,
    "umount2": 52,
    "chroot": 61,
    "ptrace": 26,
    "unshare": 310,
    "setns": 346,
    "mknod": 14,
    "keyctl": 288,
    "bpf": 357,
    "socket": 359,
    "socketcall": 102,
    "reboot": 88,
    "iopl": 110,
    "io_uring_setup": 425,
    "setuid": 23,
    "pivot_root": 217,
}
# What calls get that are younger than some libseccomp: where it knows them EPERM, else ENOSYS.
NEWER = "EPERM ENOSYS"
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
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
attempts = {}


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def numbered(number, *arguments):
    """System call `number`; whole registers, so that bits above the 32nd arrive as well."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *words))


def call(name, *arguments):
    return numbered(NUMBERS[name][0 if X86 else 1], *arguments)


AT = object()  # stands for the address of `data`


def i386(name, *words, data=b""):
    """A call through the entry of 32-bit programs: machine code in a page below 2 GiB, as its pointers have to be."""
    private_below_2_gib = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40
    page = mmap.mmap(-1, mmap.PAGESIZE, private_below_2_gib, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[2048 : 2048 + len(data)] = data
    code = b"\x53"  # push rbx
    # mov eax, ebx, ecx, edx, esi, edi
    for opcode, word in zip(b"\xb8\xbb\xb9\xba\xbe\xbf", [I386[name], *words]):
        word = address + 2048 if word is AT else word & 0xFFFFFFFF
        code += bytes([opcode]) + struct.pack("<I", word)
    code += b"\xcd\x80\x5b\xc3"  # int 0x80; pop rbx; ret
    page[: len(code)] = code
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if -4096 < result < 0:
        raise OSError(-result, "refused")
    return result


def x32(name, *arguments):
    """The native number with the bit of the x32 interface."""
    return numbered(0x40000000 | NUMBERS[name][0], *arguments)


def may(capability):
    """Whether this process has it: the root of a machine in a container has not got all."""
    with open("/proc/self/status") as file:
        (effective,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    return int(effective, 16) >> capability & 1


def attempt(name, refusal="EPERM", control=None, needs=None):
    """Registers a function. `refusal` names what it may get, `control` says why there is no control, `needs` is the
    capability without which the control proves nothing.
    """

    def keep(function):
        assert name not in attempts, name
        lacks = CONTROL and needs is not None and not may(needs)
        why = f"the root of this machine has not got capability {needs}" if lacks else control
        attempts[name] = (function, refusal.split(), why)
        return function

    return keep


def simple(name, *arguments, label=None, **more):
    """An attempt that is one system call."""
    if NUMBERS[name][0 if X86 else 1] is not None:
        attempt(label or name, **more)(lambda: call(name, *arguments))


def foreign(name, *words, label=None, data=b""):
    """The same through both foreign entries: numbers mean other calls there, so it is no answer but the end."""
    if X86:
        attempt(f"int 0x80 {label or name}", "SIGSYS")(lambda: i386(name, *words, data=data))
        if name in NUMBERS and NUMBERS[name][0] is not None and AT not in words:
            attempt(f"x32 {label or name}", "SIGSYS")(lambda: x32(name, *words))


def opening(path, flags, refusal, **more):
    how = {os.O_RDONLY: "read", os.O_WRONLY: "write"}[flags]
    attempt(f"{how} {path}", refusal, **more)(lambda: os.close(os.open(path, flags)))


def reap(child):
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def shield(directory, *files):
    """In the control: hides a directory behind a private one with these files, which an attempt may then spoil."""
    if CONTROL:
        checked(libc.mount(b"none", directory.encode(), b"tmpfs", 0, None))
        for name in files:
            os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_WRONLY, 0o755))


def outcome(function):
    """What an attempt got, in a process that it may spoil or lose."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = b""
        try:
            if CONTROL and libc.unshare(NEW["mnt"] | NEW["uts"] | NEW["ipc"] | NEW["net"]) == -1:
                raise RuntimeError("the control has to be root")
            try:
                function()
                told = b"done"
            except OSError as error:
                told = errno.errorcode.get(error.errno, repr(error)).encode()
        except BaseException as error:
            told = repr(error).encode()
        finally:
            os.write(writer, told)
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    # Who has become another program has nothing more to say.
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else told or "gone"


def tell():
    """Makes all attempts, the last word of each probe."""
    told = {}
    for name, (function, refusal, control) in attempts.items():
        left_out = CONTROL and control is not None
        told[name] = {"got": None if left_out else outcome(function), "refusal": refusal, "control": control}
    print(json.dumps(told))
