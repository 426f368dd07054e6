# Attempts on the barrier `proc_sys`. `attempts.py` is put before it.

# -- switches of the kernel, opened for writing and not written to. ENOENT where a kernel may be built without one.
for path, refusal in {
    "/proc/sysrq-trigger": "EACCES ENOENT",
    "/proc/sys/kernel/core_pattern": "EACCES",
    "/proc/sys/kernel/modprobe": "EACCES ENOENT",
    "/proc/sys/kernel/hotplug": "EACCES ENOENT",
    "/proc/sys/kernel/poweroff_cmd": "EACCES",
    "/proc/sys/kernel/panic": "EACCES",
    "/proc/sys/kernel/sysrq": "EACCES ENOENT",
    "/proc/sys/kernel/randomize_va_space": "EACCES",
    "/proc/sys/kernel/ns_last_pid": "EROFS ENOENT",
    "/proc/sys/kernel/usermodehelper/bset": "EACCES",
    "/proc/sys/kernel/unprivileged_bpf_disabled": "EACCES ENOENT",
    "/proc/sys/kernel/yama/ptrace_scope": "EACCES ENOENT",
    "/proc/sys/vm/drop_caches": "EACCES",
    "/proc/sys/vm/overcommit_memory": "EACCES",
    "/proc/sys/vm/panic_on_oom": "EACCES",
    "/proc/sys/fs/binfmt_misc/register": "ENOENT EACCES",
    "/proc/sys/fs/suid_dumpable": "EACCES",
    "/proc/sys/fs/protected_hardlinks": "EACCES",
    "/proc/sys/net/ipv4/ip_forward": "EACCES",
    "/proc/sys/net/core/somaxconn": "EACCES",
    # Hidden, so there is nothing to open.
    "/proc/pressure/cpu": "ENOENT",
    "/proc/pressure/io": "ENOENT",
    "/proc/pressure/memory": "ENOENT",
    "/proc/acpi/wakeup": "ENOENT",
    "/proc/irq/default_smp_affinity": "EACCES ENOENT",
    "/proc/mtrr": "EACCES ENOENT",
    "/proc/scsi/scsi": "ENOENT",
    "/sys/kernel/uevent_helper": "ENOENT",
    "/sys/kernel/profiling": "ENOENT",
    "/sys/kernel/mm/transparent_hugepage/enabled": "ENOENT",
    "/sys/module/kernel/parameters/panic": "ENOENT",
    "/sys/power/state": "ENOENT",
    "/sys/kernel/debug/tracing/trace": "ENOENT",
    "/sys/kernel/security/lockdown": "ENOENT",
    "/sys/firmware/efi/efivars": "ENOENT",
}.items():
    opening(path, os.O_WRONLY, refusal)
opening("/proc/sys/user/max_user_namespaces", os.O_WRONLY, "EACCES", needs=SYS_RESOURCE)
for name in ["sysrq-trigger", "sys/kernel/core_pattern", "sys/vm/drop_caches"]:
    # Its owner may not be changed either, nor its mode.
    attempt(f"take /proc/{name}", "EROFS ENOENT", "it would change the host's")(
        lambda name=name: os.chmod(f"/proc/{name}", 0o666)
    )

# -- control groups
GROUP = "/sys/fs/cgroup"
for name in [
    "cgroup.procs",
    "memory.max",
    "cgroup.kill",
    "release_agent",
    "memory/release_agent",
    "memory/memory.limit_in_bytes",
    "devices/devices.allow",
    "pids/cgroup.procs",
    "unified/cgroup.procs",
    "freezer/cgroup.procs",
]:
    opening(f"{GROUP}/{name}", os.O_WRONLY, "ENOENT")
for directory in ["", "/memory", "/unified"]:
    attempt(f"list {GROUP}{directory}", "ENOENT")(lambda directory=directory: os.listdir(GROUP + directory))


@attempt("make a control group", "EROFS")
def _():
    shield("/sys")
    os.mkdir("/sys/x")


attempt("list /sys/kernel", "ENOENT")(lambda: os.listdir("/sys/kernel"))
attempt("list /sys/class", "ENOENT")(lambda: os.listdir("/sys/class"))
attempt("list /sys/devices/virtual/powercap", "ENOENT")(lambda: os.listdir("/sys/devices/virtual/powercap"))
attempt("list /sys/firmware", "ENOENT")(lambda: os.listdir("/sys/firmware"))

# -- what only root reads
for name in ["kmsg", "kpageflags", "kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo"]:
    opening(f"/proc/{name}", os.O_RDONLY, "EACCES ENOENT")
for name in ["modules", "iomem", "config.gz", "kallsyms", "kcore"]:
    # There is a file, and nothing in it.
    @attempt(f"read something of /proc/{name}", "ENODATA ENOENT")
    def _(name=name):
        with open(f"/proc/{name}", "rb") as file:
            if not file.read(16):
                raise OSError(errno.ENODATA, "empty")


# -- one's own entries, where they reach further
def own(name, text):
    file = os.open(f"/proc/self/{name}", os.O_WRONLY)
    os.write(file, text)


# Nobody may make oneself less worth killing.
attempt("write a lower oom_score_adj", "EACCES", needs=SYS_RESOURCE)(lambda: own("oom_score_adj", b"-1000"))
attempt("write a lower oom_adj", "EACCES ENOENT", needs=SYS_RESOURCE)(lambda: own("oom_adj", b"-17"))


@attempt("read the number of a page of memory", "ENODATA")
def _():
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[0] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        (entry,) = struct.unpack("<Q", file.read(8))
    assert entry >> 63, "the page is not there"
    if entry & ((1 << 55) - 1) == 0:
        raise OSError(errno.ENODATA, "hidden")


attempt("read the own kernel stack", "EACCES ENOENT")(lambda: open("/proc/self/stack").read())
tell()
