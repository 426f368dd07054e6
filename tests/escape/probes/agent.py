# Attempts on the barrier `agent`. `attempts.py` is put before it.

# Process 1 is the agent; in the control it is the first process of its namespace, and the same user's.
for name in [
    "environ",
    "maps",
    "smaps",
    "numa_maps",
    "mem",
    "auxv",
    "pagemap",
    "syscall",
    "stack",
    "io",
    "personality",
    "mountstats",
    "timers",
]:
    path = f"/proc/1/{name}"

    @attempt(f"read {path}", "EACCES ENOENT" if name in ("numa_maps", "timers") else "EACCES")
    def _(path=path):
        with open(path, "rb") as file:
            file.read(1) if not path.endswith("mem") else None


for name in [
    "mem",
    "oom_score_adj",
    "comm",
    "clear_refs",
    "coredump_filter",
    "uid_map",
    "gid_map",
    "setgroups",
    "autogroup",
    "sched",
    "loginuid",
]:
    missing = " ENOENT" if name in ("autogroup", "sched", "loginuid") else ""
    opening(f"/proc/1/{name}", os.O_WRONLY, f"EACCES{missing}")


# These anybody may open; who writes is looked at later.
def written(name, text):
    os.write(os.open(f"/proc/1/{name}", os.O_WRONLY), text)


attempt("write /proc/1/timerslack_ns")(lambda: written("timerslack_ns", b"50000"))
for name in ["current", "exec"]:
    attempt(f"write /proc/1/attr/{name}", "EPERM ENOENT", "nobody may for another process")(
        lambda name=name: written(f"attr/{name}", b"x")
    )
for name in ["fd", "fdinfo", "map_files"]:
    attempt(f"list /proc/1/{name}", "EACCES")(lambda name=name: os.listdir(f"/proc/1/{name}"))
for number in range(8):
    attempt(
        f"open descriptor {number} of the agent", "EACCES", None if number < 3 else "the control has no such descriptor"
    )(lambda number=number: os.close(os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)))
attempt("open the agent's stream by its thread", "EACCES")(lambda: os.listdir("/proc/1/task/1/fd"))
for name in ["root", "cwd", "exe"]:
    attempt(f"link /proc/1/{name}", "EACCES")(lambda name=name: os.readlink(f"/proc/1/{name}"))
for kind in ["user", "mnt", "net", "pid"]:
    attempt(f"link /proc/1/ns/{kind}", "EACCES")(lambda kind=kind: os.readlink(f"/proc/1/ns/{kind}"))
attempt("go to the agent's root", "EACCES")(lambda: os.chdir("/proc/1/root"))
opening("/run/forge/agent", os.O_WRONLY, "EACCES", control="only sandboxes have the file")
attempt("replace the agent", "EROFS", control="only sandboxes have the file")(
    lambda: os.rename("/tmp", "/run/forge/agent")
)
attempt("remove the runner", "EROFS", control="only sandboxes have the file")(
    lambda: os.unlink("/run/forge/python/runner.py")
)

# -- calls on it; the filter refuses them for all processes
simple("ptrace", 16, 1, None, None, label="attach to the agent", control="it would stop the control")
simple("ptrace", 0x4206, 1, None, None, label="seize the agent")
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
simple("process_vm_readv", 1, vector, 1, vector, 1, 0, label="read the agent's memory")
simple("process_vm_writev", 1, vector, 1, vector, 1, 0, label="write the agent's memory")
for number in range(8):
    attempt(f"take descriptor {number} of the agent")(
        lambda number=number: call("pidfd_getfd", call("pidfd_open", 1, 0), number, 0)
    )
simple("kcmp", 1, os.getpid(), 0, 3, 3, label="compare a descriptor with the agent's")
simple("get_robust_list", 1, (ctypes.c_uint64 * 1)(), (ctypes.c_uint64 * 1)(), label="find locks of the agent")
simple("move_pages", 1, 0, None, None, None, 0, label="find pages of the agent")
simple("migrate_pages", 1, 0, None, None, label="move pages of the agent")
simple("setns", -1, 0, label="enter the agent's namespaces")
tell()
