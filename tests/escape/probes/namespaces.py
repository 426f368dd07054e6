# Attempts on the barrier `namespaces`. `attempts.py` is put before it.

# -- unshare and clone
for kind, flag in [*NEW.items(), ("time", 0x80), ("files", 0x400), ("fs", 0x200), ("sysvsem", 0x40000)]:
    simple("unshare", flag, label=f"unshare {kind}")
    simple("unshare", flag | HIGH, label=f"unshare {kind}, high bit")
    foreign("unshare", flag, label=f"unshare {kind}")
simple("unshare", 0, label="unshare nothing")


def clone(flag):
    reap(call("clone", flag | signal.SIGCHLD, None, None, None, None))


# CLONE_NEWTIME is not among them: clone takes its bit for the signal of the child's end.
for kind, flag in NEW.items():
    attempt(f"clone {kind}")(lambda flag=flag: clone(flag))
    attempt(f"clone {kind}, high bit")(lambda flag=flag: clone(flag | HIGH))
    if X86:
        attempt(f"int 0x80 clone {kind}", "SIGSYS")(
            lambda flag=flag: reap(i386("clone", flag | signal.SIGCHLD, 0, 0, 0, 0))
        )
        attempt(f"x32 clone {kind}", "SIGSYS")(lambda flag=flag: reap(x32("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)))
attempt("clone user and net at once")(lambda: clone(NEW["user"] | NEW["net"]))


# So that libc falls back to what the filter can look into.
def clone3(flag):
    reap(call("clone3", (ctypes.c_uint64 * 11)(flag, 0, 0, 0, signal.SIGCHLD), 88))


for kind, flag in [("nothing", 0), *NEW.items(), ("time", 0x80), ("into cgroup", 1 << 33)]:
    attempt(f"clone3 {kind}", "ENOSYS")(lambda flag=flag: clone3(flag))

# -- enter others
for kind in ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"]:
    attempt(f"setns {kind}")(lambda kind=kind: call("setns", os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), 0))
    # The agent may not be looked into, so there is nothing to enter.
    attempt(f"setns {kind} of the first process", "EACCES")(
        lambda kind=kind: call("setns", os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0)
    )
attempt("setns by pidfd")(lambda: call("setns", call("pidfd_open", 1, 0), NEW["uts"] | NEW["ipc"]))
attempt("setns by pidfd, high bit")(lambda: call("setns", call("pidfd_open", 1, 0), NEW["uts"] | HIGH))
foreign("setns", -1, 0)
simple("listns", -1, None, 0, 0, refusal=NEWER)

# -- look upwards: ioctl_ns(2)
PARENT, OWNER = 0xB702, 0xB701


def in_child(prepare, then):
    """`then` on a child that has done `prepare`: the control has no parent namespaces of its own."""
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        prepare()
        os.write(ready[1], b"x")
        os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        then(child)
    finally:
        os.write(release[1], b"x")
        os.waitpid(child, 0)


def ask(kind, question):
    def about(pid):
        fcntl.ioctl(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), question)

    if CONTROL:
        in_child(lambda: libc.unshare(NEW["user"]), about)
    else:
        about("self")


attempt("parent of the user namespace")(lambda: ask("user", PARENT))
attempt("owner of the user namespace")(lambda: ask("user", OWNER))


@attempt("parent of the pid namespace")
def _():
    if CONTROL:
        # Of a child that is the first of a new one.
        checked(libc.unshare(NEW["pid"]))
        in_child(lambda: None, lambda pid: fcntl.ioctl(os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY), PARENT))
    else:
        fcntl.ioctl(os.open("/proc/self/ns/pid", os.O_RDONLY), PARENT)


# -- change the own one
def write(path, text):
    if CONTROL:
        checked(libc.unshare(NEW["user"]))
        if path.endswith("gid_map"):
            os.write(os.open("/proc/self/setgroups", os.O_WRONLY), b"deny")
    file = os.open(path, os.O_WRONLY)
    os.write(file, text)


attempt("write uid_map")(lambda: write("/proc/self/uid_map", b"0 0 1"))
attempt("write gid_map")(lambda: write("/proc/self/gid_map", b"0 0 1"))
attempt("write setgroups", "EACCES")(lambda: write("/proc/self/setgroups", b"deny"))
attempt("write projid_map")(lambda: write("/proc/self/projid_map", b"0 0 1"))
attempt("write timens_offsets", "EPERM")(lambda: timens())


def timens():
    if CONTROL:
        checked(libc.unshare(0x80))
    os.write(os.open("/proc/self/timens_offsets", os.O_WRONLY), b"monotonic 1 0")


# -- names that namespaces hold
simple("sethostname", b"other", 5)
simple("setdomainname", b"other", 5)
opening("/proc/sys/kernel/hostname", os.O_WRONLY, "EACCES")
tell()
