# Attempts on the barrier `seccomp`. `attempts.py` is put before it.

NULLS = [None] * 6
NOWHERE = [-1] * 6  # no descriptor, no process, no address, no length

# -- into another process; 1 is the agent, and in the control the first process of its namespace
simple("ptrace", 0, 0, None, None, label="ptrace traceme")
simple("ptrace", HIGH, 0, None, None, label="ptrace traceme, high bit")
simple("ptrace", 0x4206, 1, None, None, label="ptrace seize 1")
simple("ptrace", 16, 1, None, None, label="ptrace attach 1", control="it would stop the control")
simple("ptrace", 0x4206, os.getpid(), None, None, label="ptrace seize the parent")
simple("process_vm_readv", 1, None, 0, None, 0, 0)
simple("process_vm_writev", 1, None, 0, None, 0, 0)
simple("process_madvise", -1, None, 0, 0, 0)
simple("process_mrelease", -1, 0)
simple("kcmp", os.getpid(), os.getpid(), 1, 0, 0)
simple("get_robust_list", 0, (ctypes.c_uint64 * 1)(), (ctypes.c_uint64 * 1)())
attempt("pidfd_getfd")(lambda: call("pidfd_getfd", call("pidfd_open", 1, 0), 0, 0))
attempt("pidfd_getfd of the parent")(lambda: call("pidfd_getfd", call("pidfd_open", os.getppid(), 0), 0, 0))
foreign("ptrace", 0, 0, 0, 0)

# -- keyrings
simple("add_key", b"user", b"forge", b"x", 1, -1)
simple("request_key", b"user", b"forge", None, 0)
simple("keyctl", 0, -3, 0, label="keyctl: number of the session's ring")
simple("keyctl", 6, -4, label="keyctl: describe the user's ring")
simple("keyctl", 11, -4, None, 0, label="keyctl: read the user's ring")
simple("keyctl", 0 | HIGH, -3, 0, label="keyctl, high bit")
foreign("keyctl", 0, -3, 0)

# -- programs in the kernel, its counters and page faults
for command in [0, 5, 18]:  # a map, a program, BTF
    simple("bpf", command, None, 0, label=f"bpf {command}")
simple("bpf", HIGH, None, 0, label="bpf, high bit")
foreign("bpf", 0, 0, 0)
simple("perf_event_open", (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0)
simple("lookup_dcookie", *NOWHERE)
for label, flags in [("", 0), (", user mode", 1), (", not blocking", 0o4000), (", user mode and high bit", 1 | HIGH)]:
    simple("userfaultfd", flags, label=f"userfaultfd{label}")
simple("io_uring_setup", 1, (ctypes.c_uint32 * 30)())
simple("io_uring_enter", -1, 0, 0, 0, None, 0)
simple("io_uring_register", -1, 0, None, 0)
foreign("io_uring_setup", 1, 0)

# -- the kernel itself
simple("kexec_load", 0, 0, None, 1 << 15)
simple("kexec_file_load", -1, -1, 0, None, 0)
simple("init_module", None, 0, b"")
simple("finit_module", -1, b"", 0)
simple("delete_module", b"no such module", 0)
simple("reboot", 1, 2, 3, None, label="reboot, wrong magic")
simple("reboot", 1 | HIGH, 2, 3, None, label="reboot, wrong magic and high bit")
foreign("reboot", 1, 2, 3, 0)
simple("syslog", 10, None, 0)
simple("syslog", 3, None, 0, label="syslog, read all")
simple("iopl", 0)
simple("ioperm", 0x80, 1, 1)
foreign("iopl", 0)
simple("modify_ldt", 0, None, 0)
simple("modify_ldt", 1, None, 0, label="modify_ldt, write")
simple("uselib", b"/no such file")

# -- clocks
simple("clock_settime", 0, (ctypes.c_long * 2)(0, -1))
simple("settimeofday", None, None)
simple("adjtimex", None)
simple("clock_adjtime", 0, None)
attempt("time.clock_settime", "EPERM", "it would set the host's clock")(
    lambda: __import__("time").clock_settime(0, __import__("time").time())
)

# -- the host's administration
simple("swapon", b"/no such file", 0)
simple("swapoff", b"/no such file")
simple("acct", b"/no such file")
simple("quotactl", 0x800001 << 8, None, 0, None)
simple("vhangup", control="it would hang up the terminal of whoever runs the tests")
simple("nfsservctl", *NULLS)
simple("sync")
simple("syncfs", -1)

# -- watch others, take what is counted for all
simple("fanotify_init", 0, 0)
simple("fanotify_mark", -1, 0, 0, -1, None)
simple("inotify_init")
simple("inotify_init1", 0)
simple("inotify_add_watch", -1, b"/", 1)
simple("inotify_rm_watch", -1, 0)

# -- memory
simple("splice", -1, None, -1, None, 1, 0)
simple("tee", -1, -1, 1, 0)
simple("vmsplice", -1, None, 0, 0)
simple("memfd_secret", 0)
simple("mbind", None, 0, 0, None, 0, 0)
simple("set_mempolicy", 0, None, 0)
simple("set_mempolicy_home_node", None, 0, 0, 0)
simple("migrate_pages", 0, 0, None, None)
simple("move_pages", 0, 0, None, None, None, 0)
simple("map_shadow_stack", None, 0, 0, refusal=NEWER)
simple("cachestat", -1, None, None, 0, refusal=NEWER)
simple("lsm_set_self_attr", 0, None, 0, 0, refusal=NEWER)
simple("file_setattr", -1, None, None, 0, 0, refusal=NEWER)
simple("personality", 0x0040000, label="personality, no random addresses")
simple("personality", 0x0400000, label="personality, read implies execute")
simple("personality", 0x0040000 | HIGH, label="personality, high bit")

# -- of no use here: System V and POSIX messages, aio, confinement by oneself, hints
simple("shmget", 0, 4096, 0o600)
simple("shmat", -1, None, 0)
simple("shmctl", -1, 0, None)
simple("shmdt", None)
simple("semget", 0, 1, 0o600)
simple("semop", -1, None, 0)
simple("semctl", -1, 0, 0, None)
simple("msgget", 0, 0o600)
simple("msgsnd", -1, None, 0, 0)
simple("msgrcv", -1, None, 0, 0, 0)
simple("msgctl", -1, 0, None)
simple("mq_open", b"forge", 0o100, 0o600, None)
simple("mq_unlink", b"forge no such queue")
simple("mq_notify", -1, None)
simple("io_setup", 0, None)
simple("io_destroy", 0)
simple("get_mempolicy", None, None, 0, None, 0)
simple("seccomp", 0, 0, None, label="seccomp")
simple("seccomp", 1, 8, None, label="seccomp, a listener")
simple("landlock_create_ruleset", None, 0, 1)
simple("landlock_add_rule", -1, 0, None, 0)
simple("landlock_restrict_self", -1, 0)
simple("mlockall", 0)
simple("munlockall")
simple("mlock2", None, 0, 0)
simple("pkey_alloc", 1, 0)
simple("pkey_mprotect", None, 0, 0, 0)
simple("mincore", None, 0, None)
simple("remap_file_pages", None, 0, 0, 0, 0)
simple("readahead", -1, 0, 0)
simple("ioprio_get", 1, 0)
simple("ioprio_set", 1, 0, 0)
simple("sched_getattr", 0, None, 0, 0)
simple("sched_setattr", 0, None, 0)

# -- other ways in
simple(
    "getpid",
    label="getpid is answered",
    refusal="done",
    control="the control of this probe itself: a call that is allowed",
)
foreign("getpid")
# What nobody has heard of is missing, so that libc falls back.
attempt("call 600", "ENOSYS", "there is none in any kernel")(lambda: numbered(600))
attempt("call 999", "ENOSYS", "there is none in any kernel")(lambda: numbered(999))
attempt("call -1", "EPERM", "there is none in any kernel")(lambda: numbered(-1))
if X86:
    # The numbers of x32 calls without its bit, which kernels before 5.4 took for them.
    for number in [520, 521, 545, 547]:
        attempt(f"call {number} of x32 without its bit", "ENOSYS", "kernels since 5.4 have none")(
            lambda number=number: numbered(number, *NULLS)
        )


# On AMD the instruction is unknown to 64-bit programs; on Intel it is the entry of 32-bit ones, or leads back nowhere.
@attempt("sysenter", "SIGSYS SIGSEGV SIGILL", "the kernel sets it up for 32-bit programs only")
def _():
    page = mmap.mmap(
        -1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    )
    # mov eax, 20; sysenter. Elsewhere than on x86-64 this is no program.
    page[:7] = b"\xb8\x14\x00\x00\x00\x0f\x34" if X86 else bytes(7)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


# -- filters only ever tighten
@attempt("mount under an own filter that allows all", "EPERM")
def _():
    allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
    program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow))
    checked(libc.prctl(ctypes.c_ulong(38), ctypes.c_ulong(1), 0, 0, 0))
    checked(libc.prctl(ctypes.c_ulong(22), ctypes.c_ulong(2), program))
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)


attempt("take the filter away", "EINVAL", "there is none outside to take away")(
    lambda: checked(libc.prctl(ctypes.c_ulong(22), ctypes.c_ulong(0), 0, 0, 0))
)
tell()
