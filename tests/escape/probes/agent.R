# Attempts on the barrier `agent`. `attempts.R` is put before it.

for (name in c("environ", "maps", "mem", "auxv", "stack")) opened(file.path("/proc/1", name), "rb", "EACCES")
for (name in c("mem", "oom_score_adj", "comm")) opened(file.path("/proc/1", name), "r+b", "EACCES")
for (name in c("fd", "root/", "cwd/", "map_files")) commanded(paste0("ls /proc/1/", name), "EACCES")
commanded("readlink -v /proc/1/exe", "EACCES")
native(list("ptrace seize 1" = c(0x4206, 1, 0, 0), "process_vm_readv" = c(1, 0, 0, 0, 0, 0),
            "kcmp" = c(1, 1, 1, 0, 0)))
