# Attempts on the barrier `resources`. `attempts.R` is put before it.

# Both the soft and the hard limit; a host may have any.
for (limit in c("-c 1", "-n 300", "-l 65")) {
    commanded(paste("ulimit", limit), "EPERM", "root may raise it or have more")
}
shield("/srv")
for (directory in c("/tmp", "/dev/shm")) {
    file <- file.path(if (CONTROL) "/srv" else directory, "bomb")
    for (how in c("head -c 80M /dev/zero >", "truncate -s 1T FILE && head -c 80M /dev/zero 1<>",
                  "fallocate -l 80M")) {
        attempt(paste("fill", directory, "by", how), "ENOSPC", function() {
            shell(paste(sub("FILE", file, how), file, "; told=$?; rm -f", file, "; exit $told"))
        })
    }
}
