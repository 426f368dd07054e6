# Attempts on the barrier `devices`. `attempts.py` is put before it.

kinds = [
    ("block", stat.S_IFBLK, 8 << 8),
    ("memory", stat.S_IFCHR, 1 << 8 | 1),
    ("kernel log", stat.S_IFCHR, 1 << 8 | 11),
    ("whiteout", stat.S_IFCHR, 0),
    ("fuse", stat.S_IFCHR, 10 << 8 | 229),
    ("tun", stat.S_IFCHR, 10 << 8 | 200),
    ("kvm", stat.S_IFCHR, 10 << 8 | 232),
    ("null", stat.S_IFCHR, 1 << 8 | 3),
    ("fifo", stat.S_IFIFO, 0),
    ("socket", stat.S_IFSOCK, 0),
    ("file", stat.S_IFREG, 0),
]


def node(directory, name, kind, device, old=False):
    shield("/tmp")
    path = f"{directory if not CONTROL else '/tmp'}/{name}".encode()
    if old:
        call("mknod", path, kind | 0o600, device)
    else:
        call("mknodat", HERE, path, kind | 0o600, device)


for name, kind, device in kinds:
    attempt(f"mknodat {name}")(lambda name=name, kind=kind, device=device: node("/workspace", name, kind, device))
    if X86:
        attempt(f"mknod {name}")(lambda name=name, kind=kind, device=device: node("/tmp", name, kind, device, True))
attempt("mknodat, high bits")(lambda: node("/dev/shm", "x", stat.S_IFBLK | HIGH, 8 << 8 | HIGH))


def shielded(function):
    shield("/tmp")
    function()


if X86:
    fifo = stat.S_IFIFO | 0o600
    attempt("int 0x80 mknod", "SIGSYS")(lambda: shielded(lambda: i386("mknod", AT, fifo, 0, data=b"/tmp/fifo\0")))
    attempt("x32 mknod", "SIGSYS")(lambda: shielded(lambda: x32("mknod", b"/tmp/fifo", fifo, 0)))

# -- what is not in /dev. Where the host has none either there is nothing to be held against.
for name in [
    "mem",
    "kmem",
    "port",
    "kmsg",
    "fuse",
    "kvm",
    "net/tun",
    "loop-control",
    "loop0",
    "sda",
    "vda",
    "nvme0",
    "console",
    "tty0",
    "ttyS0",
    "vcs",
    "userfaultfd",
    "vsock",
    "vhost-net",
    "hwrng",
    "rtc0",
    "btrfs-control",
    "mapper/control",
    "cpu_dma_latency",
    "dri/card0",
    "input/event0",
    "snd/timer",
    "uinput",
    "uhid",
    "vfio/vfio",
    "sev",
    "sgx_enclave",
    "tpm0",
    "nvram",
    "mcelog",
    "cuse",
    "autofs",
    "ppp",
    "zram0",
]:
    attempt(f"look at /dev/{name}", "ENOENT")(lambda name=name: os.stat(f"/dev/{name}"))
opening("/dev/ptmx", os.O_RDONLY, "ENOENT")
attempt("make a terminal", "ENOENT")(lambda: os.openpty())
attempt("list /dev/pts", "ENOENT")(lambda: os.listdir("/dev/pts"))
attempt("list /dev/mqueue", "ENOENT")(lambda: os.listdir("/dev/mqueue"))


@attempt("remove a device", "EACCES")
def _():
    shield("/dev", "zero")
    os.unlink("/dev/zero")


@attempt("put a device aside", "EACCES")
def _():
    shield("/dev", "random")
    os.rename("/dev/random", "/dev/random.old")


@attempt("make a file in /dev", "EACCES")
def _():
    shield("/dev")
    os.open("/dev/x", os.O_CREAT | os.O_WRONLY)


@attempt("run a program from /dev/shm", "EACCES")
def _():
    # The mount has noexec; the control makes the same file where programs may be.
    directory = "/tmp" if CONTROL else "/dev/shm"
    shield("/tmp")
    with open(f"{directory}/program", "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(f"{directory}/program", 0o755)
    os.execv(f"{directory}/program", ["program"])


RNDRESEEDCRNG = 0x5207
attempt("seed the kernel's random numbers")(lambda: fcntl.ioctl(os.open("/dev/urandom", os.O_RDONLY), RNDRESEEDCRNG, 0))
tell()
