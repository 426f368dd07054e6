# Attempts on the barrier `resources`. `attempts.py` is put before it.

import threading
import zipfile

# -- limits can be lowered only
prlimit = libc.prlimit
for name in ["CORE", "NOFILE", "MEMLOCK", "SIGPENDING", "MSGQUEUE", "RTPRIO", "NICE"]:

    @attempt(f"raise the limit {name}", needs=SYS_RESOURCE)
    def _(which=getattr(resource, f"RLIMIT_{name}")):
        if CONTROL:
            # There is something to raise after this.
            checked(prlimit(0, which, struct.pack("<QQ", 1, 1), None))
        _, hard = resource.getrlimit(which)
        checked(prlimit(0, which, struct.pack("<QQ", hard + 1, hard + 1), None))


# -- what is counted: more than any sandbox has, and little to a host
def many(count, function):
    for number in range(count):
        function(number)


attempt("descriptors", "EMFILE")(lambda: many(400, lambda _: os.dup(0)))


@attempt("processes", "EAGAIN")
def _():
    children = []

    def child(_):
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)

    try:
        many(150, child)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@attempt("threads", "EAGAIN")
def _():
    # Python tells of no errno here; it has one reason only.
    try:
        many(150, lambda _: threading.Thread(target=threading.Event().wait, daemon=True).start())
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "refused") from error


@attempt("signals that wait", "EAGAIN")
def _():
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    many(1000, lambda _: checked(libc.sigqueue(os.getpid(), int(number), None)))


@attempt("timers", "EAGAIN")
def _():
    timer = ctypes.c_void_p()
    never = struct.pack("<QiI48x", 0, 0, 1)  # no signal when it ends
    many(1000, lambda _: checked(libc.timer_create(1, never, ctypes.byref(timer))))


@attempt("memory that is locked", "ENOMEM")
def _():
    if CONTROL:
        # Of a capability that root may lack it takes none as far as the limit goes.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
    page = mmap.mmap(-1, 1 << 17)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    checked(libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(1 << 17)))


@attempt("a large pipe", needs=SYS_RESOURCE)
def _():
    fcntl.fcntl(os.pipe()[1], 1031, 1 << 23)  # F_SETPIPE_SZ


# -- private file systems
def filled(directory, function):
    shield("/tmp")
    where = "/tmp" if CONTROL else directory
    try:
        function(where)
    finally:
        for name in os.listdir(where):
            os.unlink(f"{where}/{name}")


def bytes_of(count):
    def fill(where):
        with open(f"{where}/bytes", "wb", buffering=0) as file:
            many(count, lambda _: file.write(bytes(1 << 20)))

    return fill


def sparse(where):
    # As large as one likes, and no more of it than there is room for.
    file = os.open(f"{where}/sparse", os.O_CREAT | os.O_RDWR)
    os.truncate(file, 1 << 40)
    many(80, lambda number: os.pwrite(file, bytes(1 << 20), number << 33))


def zipped(where):
    # 80 MiB in 80 KB.
    with zipfile.ZipFile(f"{where}/bomb.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("bomb", "w") as member:
            many(80, lambda _: member.write(bytes(1 << 20)))
    with zipfile.ZipFile(f"{where}/bomb.zip") as archive:
        archive.extractall(where)


for directory in ["/tmp", "/dev/shm"]:
    attempt(f"bytes in {directory}", "ENOSPC")(lambda directory=directory: filled(directory, bytes_of(80)))
    attempt(f"files in {directory}", "ENOSPC")(
        lambda directory=directory: filled(
            directory, lambda where: many(20_000, lambda n: os.symlink("x", f"{where}/{n}"))
        )
    )
    attempt(f"a sparse file in {directory}", "ENOSPC")(lambda directory=directory: filled(directory, sparse))
    attempt(f"an allocated file in {directory}", "ENOSPC")(
        lambda directory=directory: filled(
            directory, lambda where: os.posix_fallocate(os.open(f"{where}/a", os.O_CREAT | os.O_RDWR), 0, 80 << 20)
        )
    )
attempt("a zip bomb in /tmp", "ENOSPC")(lambda: filled("/tmp", zipped))
attempt("an allocated file in the workspace", "ENOSPC", "it would take as much of the host's memory")(
    lambda: filled(
        "/workspace", lambda where: os.posix_fallocate(os.open(f"{where}/a", os.O_CREAT | os.O_RDWR), 0, 2 << 30)
    )
)
tell()
