# Attempts on the barrier `capabilities`. `attempts.R` is put before it.

native(list(setuid = 0, setgid = 0, setreuid = c(0, 0), setregid = c(0, 0), setresuid = c(0, 0, 0),
            setresgid = c(0, 0, 0), setfsuid = 0, setgroups = c(0, 0)))
native(plain("capset"))
commanded("renice -n -5 -p $$", "EACCES")
shield("/srv")
attempt("system: chown 0", "EPERM", function() {
    shell(paste("cd", if (CONTROL) "/srv" else "/tmp", "&& touch mine && chown", if (CONTROL) "1" else "0", "mine"))
})
