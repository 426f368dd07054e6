# Attempts on the barrier `seccomp`. `attempts.R` is put before it.

native(plain("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
             "get_robust_list", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "syslog", "userfaultfd",
             "io_uring_setup", "io_uring_enter", "io_uring_register", "init_module", "finit_module", "delete_module",
             "kexec_load", "kexec_file_load", "reboot", "clock_settime", "clock_adjtime", "settimeofday", "adjtimex",
             "swapon", "swapoff", "acct", "quotactl", "syncfs", "fanotify_init", "fanotify_mark", "inotify_init1",
             "inotify_add_watch", "inotify_rm_watch", "splice", "tee", "vmsplice", "mbind", "set_mempolicy",
             "migrate_pages", "move_pages", "memfd_secret", "seccomp", "landlock_create_ruleset", "shmget", "semget",
             "msgget", "mq_open", "mlockall", "pkey_alloc", "get_mempolicy", "io_setup"))
native(list("ptrace traceme" = c(0, 0, 0, 0), "userfaultfd user mode" = 1, "bpf map" = 0,
            "keyctl session" = c(0, -3, 0), "personality no random addresses" = 0x40000,
            "syslog read all" = c(3, 0, 0)))
commanded("dmesg")
