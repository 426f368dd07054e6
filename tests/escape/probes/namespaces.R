# Attempts on the barrier `namespaces`. `attempts.R` is put before it.

for (kind in c("user", "mount", "pid --fork", "net", "ipc", "uts", "cgroup", "time --fork")) {
    commanded(paste0("unshare --", kind, " true"))
}
commanded("nsenter --uts=/proc/self/ns/uts true")
opened("/proc/1/ns/uts", "r", "EACCES")
native(list(unshare = 0, "unshare user" = 0x10000000, "unshare net" = 0x40000000,
            "unshare user, high bit" = 2^32 + 0x10000000,
            setns = c(-1, 0)))
native(list(clone3 = c(0, 0)), "ENOSYS")
