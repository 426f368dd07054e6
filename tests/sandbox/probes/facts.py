"""Prints, as one JSON object, what a process can see of itself and of the world. Runs inside the sandbox and outside."""

import json
import os
import resource
import socket
import stat
import subprocess
import sys

CONTROL = sys.argv[1:] == ["control"]
# Where the kernel tells of the whole machine.
MACHINE = ["acpi", "bootconfig", "cmdline", "config.gz", "diskstats", "interrupts", "iomem", "ioports", "kallsyms", "kcore"]
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
            "core": resource.getrlimit(resource.RLIMIT_CORE),
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
            "set_uid": set_uid(),
        }
    )
)
