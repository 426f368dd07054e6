# Attempts on the barrier `capabilities`. `attempts.py` is put before it.

import shutil
import subprocess

# -- become somebody else
for name, words in {
    "setuid": [0],
    "setgid": [0],
    "setreuid": [0, 0],
    "setregid": [0, 0],
    "setresuid": [0, 0, 0],
    "setresgid": [0, 0, 0],
    "setfsuid": [0],
    "setfsgid": [0],
    "setgroups": [0, None],
}.items():
    simple(name, *words)
for name in ["setuid", "setresuid"]:
    simple(name, *[1000] * (3 if name == "setresuid" else 1), label=f"{name} to the own id")
simple("setuid", HIGH, label="setuid, high bit")
foreign("setuid", 0)
header = struct.pack("<Ii", 0x20080522, 0)
simple("capset", header, struct.pack("<6I", *[0] * 6), label="capset nothing")
simple("capset", header, struct.pack("<6I", *[0xFFFFFFFF] * 6), label="capset everything", needs=SYS_RESOURCE)


def prctl(*words):
    return lambda: checked(libc.prctl(*map(ctypes.c_ulong, words)))


SYS_ADMIN, NET_RAW = 21, 13


@attempt("raise an ambient capability", needs=NET_RAW)
def _():
    if CONTROL:
        # It has to be inheritable first.
        numbered(126 if X86 else 91, header, struct.pack("<6I", *[1 << NET_RAW] * 3, 0, 0, 0))
    prctl(47, 2, NET_RAW, 0, 0)()


attempt("drop from the bounding set")(prctl(24, SYS_ADMIN, 0, 0, 0))
attempt("keep capabilities for root", "EPERM")(prctl(28, 1, 0, 0, 0))
# No way back for anybody.
attempt("lift no_new_privs", "EINVAL", "the kernel knows no way back for root either")(prctl(38, 0, 0, 0, 0))
attempt("change the map of the own memory", needs=SYS_RESOURCE)(prctl(35, 1, 0, 0, 0))

# -- what takes a capability
attempt("bind a low port", "EACCES")(lambda: socket.socket().bind(("0.0.0.0", 80)))
attempt("mark packets")(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1))
attempt("force a receive buffer")(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 33, 1 << 20))
attempt("be transparent")(lambda: socket.socket().setsockopt(socket.SOL_IP, 19, 1))
attempt("set high priority of packets")(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 12, 7))
attempt("raise the nice value", "EACCES")(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("real time")(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("round robin")(lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))
attempt("give a file away")(lambda: give_away())
attempt("file capabilities", "EPERM")(
    lambda: attribute("security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
)
attempt("attribute of the trusted", "EPERM")(lambda: attribute("trusted.x", b"1"))
attempt("pretend to be root to a socket")(lambda: pretend())
attempt("read a file of root", "EACCES")(lambda: unreadable())


def own_file():
    shield("/tmp")
    path = f"/tmp/{os.getpid()}"
    with open(path, "w") as file:
        file.write("text")
    return path


def give_away():
    os.chown(own_file(), 0 if not CONTROL else 1, -1)


def attribute(name, value):
    os.setxattr(own_file(), name, value)


def unreadable():
    # A file that its owner may not read: whoever overrides that has a capability.
    path = own_file()
    os.chmod(path, 0)
    os.close(os.open(path, os.O_RDONLY))


def pretend():
    mine, _ = socket.socketpair()
    # pid, uid and gid; the control is root and pretends to be somebody else.
    wanted = struct.pack("3i", os.getpid(), *([0, 0] if not CONTROL else [1, 1]))
    mine.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, wanted)])


# -- programs that would give one. What a mount with nosuid lets pass is read from the program itself.
@attempt("an own set-user-id program of another user", "EPERM")
def _():
    shield("/tmp")
    shutil.copy("/usr/bin/id", "/tmp/id")
    os.chown("/tmp/id", 0 if not CONTROL else 1, -1)
    os.chmod("/tmp/id", 0o4755)


@attempt("a program with capabilities of its file", "EPERM")
def _():
    shield("/tmp")
    shutil.copy("/usr/bin/id", "/tmp/id")
    os.setxattr("/tmp/id", "security.capability", struct.pack("<5I", 0x02000001, 1 << NET_RAW, 0, 0, 0))


@attempt("a set-group-id bit for a foreign group", "EPERM")
def _():
    path = own_file()
    os.chown(path, -1, 0 if not CONTROL else 1)


def says(*command):
    """EPERM where a program says so, whatever its words."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EPERM if "not permitted" in done.stderr else errno.EINVAL, done.stderr)


if os.path.exists("/usr/bin/setpriv"):
    attempt("setpriv to root")(lambda: says("/usr/bin/setpriv", "--reuid=0", "--clear-groups", "true"))
if os.path.exists("/usr/bin/unshare"):
    attempt("unshare to root")(lambda: says("/usr/bin/unshare", "--user", "--map-root-user", "true"))
if os.path.exists("/usr/bin/nsenter"):
    attempt("nsenter")(lambda: says("/usr/bin/nsenter", "--uts=/proc/self/ns/uts", "true"))
if os.path.exists("/usr/sbin/chroot"):
    attempt("chroot to the root")(lambda: says("/usr/sbin/chroot", "/", "true"))
tell()
