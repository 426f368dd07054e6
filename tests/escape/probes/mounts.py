# Attempts on the barrier `mounts`. `attempts.py` is put before it.

RDONLY, NOSUID, REMOUNT, BIND, MOVE, REC = 1, 2, 32, 4096, 8192, 16384
MASKED = [
    "/proc/keys",
    "/proc/kcore",
    "/proc/timer_list",
    "/proc/interrupts",
    "/proc/acpi",
    "/proc/sysrq-trigger",
    "/proc/sys",
]

# -- the old interface
for kind in [
    "tmpfs",
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "mqueue",
    "ramfs",
    "overlay",
    "securityfs",
    "debugfs",
    "bpf",
    "fuse",
]:
    options = b"memory" if kind == "cgroup" else None
    simple("mount", b"none", b"/tmp", kind.encode(), 0, options, label=f"mount {kind}")
simple("mount", b"/", b"/tmp", None, BIND | REC, None, label="bind mount")
simple("mount", b"none", b"/", None, REMOUNT | BIND, None, label="remount / writable")
for path in ["/usr", "/proc", "/dev", "/tmp"]:
    simple("mount", b"none", path.encode(), None, REMOUNT | BIND, None, label=f"remount {path} without its options")
simple("mount", b"/tmp", b"/dev", None, MOVE, None, label="move a mount")
simple("mount", b"none", b"/", None, 1 << 20 | REC, None, label="make mounts shared")
simple("mount", b"none", b"/tmp", b"tmpfs", HIGH, None, label="mount, high bit")
for path in [*MASKED, "/dev/null", "/dev/shm", "/proc", "/tmp", "/"]:
    simple("umount2", path.encode(), 0, label=f"umount {path}")
    simple("umount2", path.encode(), 2, label=f"umount {path} lazily")
simple("umount2", b"/proc", 2 | HIGH, label="umount /proc, high bit")
simple("pivot_root", b".", b".")
simple("chroot", b"/tmp")
simple("chroot", b"/", label="chroot to the root")
if X86:
    foreign("mount", AT, AT, AT, 0, 0, data=b"/tmp\0")
    foreign("umount2", AT, 2, data=b"/proc\0")
    foreign("chroot", AT, data=b"/tmp\0")
    foreign("pivot_root", AT, AT, data=b".\0")
for name in ["mount", "umount2", "chroot", "pivot_root"]:
    if X86:
        attempt(f"x32 {name}", "SIGSYS")(lambda name=name: x32(name, b"/tmp", b"/tmp", b"tmpfs", 0, None))

# -- the new one
simple("fsopen", b"tmpfs", 0)
simple("fsopen", b"tmpfs", HIGH, label="fsopen, high bit")
simple("fsconfig", -1, 6, None, None, 0)
simple("fsmount", -1, 0, 0)
simple("fspick", HERE, b"/", 0)
simple("open_tree", HERE, b"/", 0)
simple("open_tree", HERE, b"/", 1, label="open_tree, a copy")
simple("open_tree", HERE, b"/", 1 | 0x8000, label="open_tree, a copy of all")
simple("move_mount", HERE, b"/tmp", HERE, b"/dev", 0)
simple("mount_setattr", HERE, b"/", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)
simple("mount_setattr", HERE, b"/proc/sys", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32, label="mount_setattr of a mask")
simple("statmount", None, None, 0, 0, refusal=NEWER)
simple("listmount", None, None, 0, 0, refusal=NEWER)
simple("open_tree_attr", HERE, b"/", 1, None, 0, refusal=NEWER)
simple("quotactl", 0x800001 << 8, None, 0, None)
simple("quotactl_fd", -1, 0, 0, None)
simple("name_to_handle_at", HERE, b"/", (ctypes.c_uint32 * 40)(128), (ctypes.c_int * 1)(), 0)
simple("open_by_handle_at", -1, (ctypes.c_uint32 * 8)(), 0)
# The hole of 2014: the root of a file system has number 2, or 128 on XFS, whatever is mounted over it.
handle = struct.pack("<IiQ", 8, 1, 2)
attempt("open the root by its number")(
    lambda: call("open_by_handle_at", os.open("/", os.O_RDONLY), ctypes.create_string_buffer(handle), os.O_RDONLY)
)

# -- the read-only root: what the mount refuses comes before what the owner does
for path in ["/", "/usr", "/usr/bin", "/etc", "/run", "/run/forge"]:
    where = path if not CONTROL or os.path.isdir(path) else "/run"
    # An unnamed file, which leaves nothing behind in the control.
    attempt(f"create in {path}", "EROFS")(lambda path=where: os.close(os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600)))
attempt("create in /dev", "EACCES")(lambda: os.close(os.open("/dev", os.O_TMPFILE | os.O_WRONLY, 0o600)))
opening("/etc/passwd", os.O_WRONLY, "EACCES")
opening("/usr/bin/env", os.O_WRONLY, "EACCES")
opening("/usr/bin/python3", os.O_WRONLY, "EACCES")
opening("/bin/sh", os.O_WRONLY, "EACCES")


def spoiled(name, function, directory="/usr/bin", files=("env",), refusal="EROFS"):
    """An attempt on a directory of the system, which the control hides first."""

    @attempt(name, refusal)
    def _():
        shield(directory, *files)
        function()


ENV = "/usr/bin/env"
spoiled("truncate a program", lambda: os.truncate(ENV, 0), refusal="EACCES")
spoiled("open a program to empty it", lambda: os.open(ENV, os.O_WRONLY | os.O_TRUNC))
spoiled("remove a program", lambda: os.unlink(ENV))
spoiled("rename a program", lambda: os.rename(ENV, "/usr/bin/other"))
spoiled("change the mode of a program", lambda: os.chmod(ENV, 0o777))
spoiled("change the owner of a program", lambda: os.chown(ENV, 1000, 1000))
spoiled("change the time of a program", lambda: os.utime(ENV, (0, 0)))
spoiled(
    "give a program an attribute",
    lambda: os.setxattr(ENV, "security.capability", struct.pack("<5I", 0x02000001, 1, 0, 0, 0)),
)
spoiled("link a program", lambda: os.link(ENV, "/usr/bin/other"))
spoiled("make a link beside programs", lambda: os.symlink("env", "/usr/bin/other"))
spoiled("make a directory beside programs", lambda: os.mkdir("/usr/bin/other"))
spoiled("make a socket beside programs", lambda: socket.socket(socket.AF_UNIX).bind("/usr/bin/other"))
spoiled("remove /etc/passwd", lambda: os.unlink("/etc/passwd"), "/etc", ["passwd"])
spoiled("replace /etc/passwd", lambda: os.rename("/etc/passwd", "/etc/group"), "/etc", ["passwd", "group"])
spoiled("change the mode of /etc/passwd", lambda: os.chmod("/etc/passwd", 0o666), "/etc", ["passwd"])
# What is not of the system is not there.
for path in [
    "/root",
    "/home",
    "/var",
    "/srv",
    "/opt",
    "/boot",
    "/mnt",
    "/media",
    "/sys/fs/cgroup",
    "/run/user",
    "/etc/ssh",
    "/etc/ssl/private",
    "/usr/../home",
]:
    attempt(f"list {path}", "ENOENT")(lambda path=path: os.listdir(path))
for path in ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/fstab", "/etc/subuid"]:
    opening(path, os.O_RDONLY, "ENOENT")
attempt("create in /var/tmp", "ENOENT")(lambda: os.close(os.open("/var/tmp", os.O_TMPFILE | os.O_WRONLY, 0o600)))
# Not even by way of a link in a place that is writable, or of a hard link there.
spoiled(
    "link a program to the workspace",
    lambda: os.link(ENV, "/usr/bin/x" if CONTROL else "/workspace/env"),
    refusal="EXDEV",
)


@attempt("write a program through a symbolic link", "EACCES")
def _():
    where = "/tmp" if not CONTROL else "/usr/bin"
    shield("/usr/bin", "env")
    os.symlink(ENV, f"{where}/link")
    os.open(f"{where}/link", os.O_WRONLY)


@attempt("write a program through its descriptor", "EACCES")
def _():
    file = os.open(ENV, os.O_RDONLY)
    os.open(f"/proc/self/fd/{file}", os.O_WRONLY)


@attempt("map a program to write it", "EACCES")
def _():
    # The control has a descriptor that may write, which inside there is none of.
    file = os.open(ENV, os.O_RDWR if CONTROL else os.O_RDONLY)
    mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


@attempt("lift the seal of /dev/null", "EPERM")
def _():
    shield("/dev", "null")
    os.chmod("/dev/null", 0o600)


tell()
