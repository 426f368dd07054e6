print(42)
import posix as p
def r(f):
    try:
        h = p.open(f, p.O_RDONLY)
    except OSError:
        return "-"
    t = p.read(h, 999).decode().strip()
    p.close(h)
    return t
def w(f):
    h = p.open(f, p.O_WRONLY | p.O_CREAT | p.O_TRUNC, 0o600)
    p.write(h, b"NONCE")
    p.close(h)
    return r(f)
f = ["DIRECTORY1/forge-bench", "DIRECTORY2/forge-bench"]
n = ["/proc/self/ns/" + x for x in ("pid", "mnt", "net", "ipc", "uts", "cgroup", "user")]
print("proof", *map(r, f), *map(w, f), p.getpid(), r("/proc/1/stat"), *map(p.readlink, n), sep="|")
