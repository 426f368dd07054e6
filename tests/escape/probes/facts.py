"""Prints, as one JSON object, what a process can see of itself and of the world, inside the sandbox and outside."""

import ctypes
import json
import os
import resource
import socket
import stat
import subprocess
import sys

CONTROL = sys.argv[1:] == ["control"]
# Where the kernel tells of the whole machine.
MACHINE = [
    "acpi",
    "bootconfig",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
]
MACHINE += ["key-users", "keys", "kpagecount", "latency_stats", "mdstat", "modules", "partitions", "pressure"]
MACHINE += ["sched_debug", "schedstat", "scsi", "softirqs", "swaps", "timer_list", "sys/kernel/random/boot_id"]
# What programs read to fit themselves to the machine: psutil, numpy, R.
KEPT = ["cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version", "vmstat"]


def inherited():
    """Every open descriptor with its kind. First of all: each import opens files."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
        except FileNotFoundError:
            pass  # the one that read the directory
    return found


def status(pid="self"):
    with open(f"/proc/{pid}/status") as file:
        return dict((part.strip() for part in line.split(":", 1)) for line in file)


def size(path):
    """Bytes of a file, entries of a directory, or the error."""
    try:
        if os.path.isdir(path):
            return len(os.listdir(path))
        with open(path, "rb") as file:
            return len(file.read(4096))
    except OSError as error:
        return type(error).__name__


def set_uid():
    """The user ids of a running set-user-id program that an ordinary user started; none where there is no program."""
    for name in ["su", "passwd", "mount", "chsh", "newgrp"]:
        path = f"/usr/bin/{name}"
        if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID:
            user = {"user": 65534} if CONTROL else {}
            quiet = subprocess.DEVNULL
            child = subprocess.Popen([path, "--help"], stdin=quiet, stdout=quiet, stderr=quiet, **user)
            # Also when it has ended already: its entry is there until somebody waits for it.
            ids = status(child.pid)["Uid"].split()
            child.wait()
            return ids
    return None


def devices():
    """Kind, numbers, mode and owner of what /dev has; names of what is no device."""
    found = {}
    for name in sorted(os.listdir("/dev")):
        about = os.lstat(f"/dev/{name}")
        kind = {stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFLNK: "link", stat.S_IFDIR: "directory"}.get(
            stat.S_IFMT(about.st_mode), "other"
        )
        if kind in ("char", "block"):
            kind += f" {os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
        elif kind == "link":
            kind += " " + os.readlink(f"/dev/{name}")
        found[name] = kind
    return found


def is_null(path):
    """What hides a file of the kernel is the null device."""
    about = os.stat(path)
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == os.makedev(1, 3)


def writable(top):
    """The files below it that can be opened for writing, of which nothing is written. Processes are left out."""
    found = []
    for directory, below, names in os.walk(top):
        if directory == "/proc":
            below[:] = [name for name in below if not name.isdigit() and name not in ("self", "thread-self")]
        for name in names:
            path = f"{directory}/{name}"
            try:
                if not os.path.islink(path) and not is_null(path):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    found.append(path)
            except OSError:
                pass
    return found


def of_first():
    """What can be read of process 1, and what can be written."""
    modes = {"read": os.O_RDONLY, "written": os.O_WRONLY}
    found = {mode: [] for mode in modes}
    for name in sorted(os.listdir("/proc/1")):
        for mode, flag in modes.items():
            path = f"/proc/1/{name}"
            try:
                file = os.open(path, flag | os.O_NONBLOCK)
                if mode == "read" and not os.path.isdir(path):
                    os.read(file, 1)
                os.close(file)
                found[mode].append(name)
            except OSError:
                pass
    return found


def namespaces(pid="self"):
    """Each namespace of a process by its number; the name of an error where it may not be known."""
    found = {}
    for name in sorted(os.listdir("/proc/self/ns")):
        try:
            found[name] = os.readlink(f"/proc/{pid}/ns/{name}")
        except OSError as error:
            found[name] = type(error).__name__
    return found


def mounts():
    """Each mount point with its options."""
    with open("/proc/self/mountinfo") as file:
        return {fields[4]: fields[5].split(",") for fields in map(str.split, file)}


descriptors = inherited()
own = status()
print(
    json.dumps(
        {
            "descriptors": descriptors,
            "status": own,
            "uid_map": open("/proc/self/uid_map").read().split(),
            "gid_map": open("/proc/self/gid_map").read().split(),
            "environment": dict(os.environ),
            "root": sorted(os.listdir("/")),
            "run": sorted(os.listdir("/run")),
            "dev": sorted(os.listdir("/dev")),
            "etc": sorted(os.listdir("/etc")),
            "sys": len(os.listdir("/sys")) if os.path.exists("/sys") else 0,
            "tmp": sorted(os.listdir("/tmp")),
            "here": [os.getcwd(), sorted(os.listdir("."))],
            "machine": {name: size(f"/proc/{name}") for name in MACHINE},
            "kept": {name: size(f"/proc/{name}") for name in KEPT},
            "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
            "interfaces": [name for _, name in socket.if_nameindex()],
            "hostname": socket.gethostname(),
            "mounts": mounts(),
            "sources": sorted({line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")}),
            "devices": devices(),
            "writable": writable("/proc") + writable("/sys") if not CONTROL else writable("/proc/sys/kernel"),
            "first": of_first() if not CONTROL else None,
            "owner of first": os.stat("/proc/1/fd").st_uid,
            "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
            "namespaces": namespaces(),
            "groups": open("/proc/self/cgroup").read().split("\n"),
            "routes": open("/proc/net/route").read().splitlines()[1:],
            "links": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]),
            "core": resource.getrlimit(resource.RLIMIT_CORE),
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
            "set_uid": set_uid(),
        }
    )
)
