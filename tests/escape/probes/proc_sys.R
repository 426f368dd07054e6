# Attempts on the barrier `proc_sys`. `attempts.R` is put before it.

for (path in c("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic",
             "/proc/sys/vm/panic_on_oom")) {
    opened(path, "r+", "EACCES")
}
opened("/proc/sys/kernel/ns_last_pid", "r+", "EROFS ENOENT")
opened("/proc/kmsg", "r", "EACCES ENOENT", "it would take the lines away from whoever reads them")
for (path in c("/proc/kpageflags", "/proc/slabinfo", "/proc/pagetypeinfo")) opened(path, "r", "EACCES ENOENT")
for (path in c("/sys/power/state", "/sys/kernel/uevent_helper", "/sys/kernel/profiling",
             "/sys/fs/cgroup/memory.max")) {
    opened(path, "r+", "ENOENT")
}
attempt("dir.create", "ENOENT", function() dir.create("/sys/fs/cgroup/probe"), "it would make a group of the host")
commanded("cat /sys/kernel/notes", "ENOENT")
commanded("ls /sys/fs/cgroup", "ENOENT")
