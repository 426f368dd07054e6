# What the probes in R share; see attempts.py. They print a line for each attempt: its name, what it got, what it must
# get, and why there is no control.

CONTROL <- "control" %in% commandArgs(trailingOnly = TRUE)
ERRORS <- c("Operation not permitted" = "EPERM", "Permission denied" = "EACCES", "Read-only file system" = "EROFS",
            "No such file or directory" = "ENOENT", "Function not implemented" = "ENOSYS",
            "Connection refused" = "ECONNREFUSED", "Network is unreachable" = "ENETUNREACH",
            "No space left on device" = "ENOSPC", "Too many open files" = "EMFILE",
            "Resource temporarily unavailable" = "EAGAIN", "Invalid argument" = "EINVAL", "No such process" = "ESRCH")

# The name of the error that a text speaks of, or the text.
named <- function(text) {
    text <- paste(text, collapse = " ")
    for (words in names(ERRORS)) if (grepl(words, text, fixed = TRUE)) return(ERRORS[[words]])
    gsub("[\t\n]", " ", text)
}

outcome <- function(what) {
    said <- character()
    keep <- function(condition) said <<- c(said, conditionMessage(condition))
    tryCatch(withCallingHandlers(what(), warning = function(w) {
        keep(w)
        invokeRestart("muffleWarning")
    }), error = keep)
    if (length(said)) named(said) else "done"
}

attempt <- function(name, refusal, what, control = "") {
    got <- if (CONTROL && nzchar(control)) "" else outcome(what)
    cat(name, got, refusal, control, sep = "\t")
    cat("\n")
}

# A command of the shell; what it says when it fails is the error.
shell <- function(command) {
    said <- suppressWarnings(system2("/bin/sh", c("-c", shQuote(command)), stdout = TRUE, stderr = TRUE,
        env = "LC_ALL=C"))
    if (!is.null(attr(said, "status"))) stop(paste(said, collapse = " "))
}
commanded <- function(command, refusal = "EPERM", control = "") {
    attempt(paste("system:", command), refusal, function() shell(command), control)
}

opened <- function(path, mode, refusal, control = "") {
    attempt(paste0("file(", path, ", ", mode, ")"), refusal, function() close(file(path, mode, raw = TRUE)), control)
}

# In the control: hides a directory behind a private one, which attempts may then spoil.
shield <- function(directory) if (CONTROL) shell(paste("mount -t tmpfs none", directory))

# System calls by native code of one's own, a process for each. The arguments are -1 where none are given: no
# descriptor, no process, no address, no flag.
SOURCE <- '
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
void attempt(int *number, double *words, int *control, char **got) {
    pid_t child = fork();
    if (child == 0) {
        if (*control && unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)) _exit(255);
        long w[6];
        for (int i = 0; i < 6; i++) w[i] = (long)words[i];
        errno = 0;
        long result = syscall(*number, w[0], w[1], w[2], w[3], w[4], w[5]);
        _exit(result == -1 ? errno : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    static char text[64];
    if (WIFSIGNALED(status)) snprintf(text, sizeof text, "SIG%s", sigabbrev_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == 0) strcpy(text, "done");
    else snprintf(text, sizeof text, "%s", strerrorname_np(WEXITSTATUS(status)));
    *got = text;
}
void number(char **name, int *number) {
    struct { const char *name; int number; } calls[] = { CALLS { 0, -1 } };
    *number = -1;
    for (int i = 0; calls[i].name; i++) if (!strcmp(calls[i].name, *name)) *number = calls[i].number;
}
'

# `calls` is a list of the arguments by name of the call; two of one name differ behind a space.
native <- function(calls, refusal = "EPERM") {
    directory <- tempfile()
    dir.create(directory)
    on.exit(unlink(directory, recursive = TRUE))
    path <- file.path(directory, "attempt")
    of <- sub(" .*", "", names(calls))
    known <- paste0("{ \"", unique(of), "\", SYS_", unique(of), " },", collapse = " ")
    writeLines(sub("CALLS", known, SOURCE, fixed = TRUE), paste0(path, ".c"))
    shell(paste0("cc -shared -fPIC -o ", path, ".so ", path, ".c"))
    dyn.load(paste0(path, ".so"))
    for (i in seq_along(calls)) {
        number <- .C("number", of[[i]], integer(1))[[2]]
        words <- c(as.numeric(calls[[i]]), rep(-1, 6))[1:6]
        got <- .C("attempt", number, words, as.integer(CONTROL), "")[[4]]
        cat(paste("dyn.load:", names(calls)[[i]]), got, refusal, "", sep = "\t")
        cat("\n")
    }
}
# Calls without arguments of their own.
plain <- function(...) sapply(c(...), function(name) numeric(), simplify = FALSE)
