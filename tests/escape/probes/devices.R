# Attempts on the barrier `devices`. `attempts.R` is put before it.

shield("/srv")
directory <- if (CONTROL) "/srv" else "/workspace"
for (node in c("block b 8 0", "memory c 1 1", "log c 1 11", "pipe p")) {
    attempt(paste("system: mknod", node), "EPERM", function() shell(paste("cd", directory, "&& mknod", node)))
}
native(plain("mknodat"))
for (name in c("mem", "kmsg", "fuse", "loop-control", "kvm", "vda", "net/tun")) {
    opened(file.path("/dev", name), "r", "ENOENT")
}
