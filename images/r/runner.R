# The R runner: one program, run once, inside a sandbox.
#
# The agent (process 1 of the sandbox) starts R without its shell wrapper, and R reads this file as the user's profile:
#
#     $R_HOME/bin/exec/R --no-echo --no-restore --no-save
#
#     R_HOME, R_SHARE_DIR, R_INCLUDE_DIR, R_DOC_DIR   as the wrapper `R` assigns them, each at the start of a line; the
#                                  first as `R_HOME_DIR=`. Debian: /usr/lib/R, /usr/share/R/{share,include,doc}
#     R_ARCH=                      empty
#     LD_LIBRARY_PATH=$R_HOME/lib  followed by what was set before, if anything
#     R_PROFILE_USER               this file
#     R_ENVIRON_USER=              empty: no .Renviron of the workspace is read
#     R_ENVIRON=, R_PROFILE=       empty: no Renviron.site and no Rprofile.site of the host is read
#     PATH, HOME, LANG=C.UTF-8, TMPDIR, TZ
#
# In this way R's console is the program's stdin: stdin(), scan(), readLines(stdin()) and the debugger read it.
# R_PROFILE_USER and R_ENVIRON_USER are unset before the program starts; no .Rprofile of the workspace is read.
#
# The program's stdin, stdout and stderr are descriptors 0, 1 and 2. Descriptor 3 is the read end of a pipe, 4 the write
# end of another. They are opened anew, by /proc, for each use, so that no connection exists that the program could list
# or close. For this the pipes must belong to the user of the process: created by it, or given to it with fchown. R
# cannot set close-on-exec: children of the program inherit both, and their end is nothing to wait for.
#
# Agent to runner, exactly one job (integers big-endian, texts in UTF-8), then one byte (6) for each frame that asks:
#
#     u8 flags (bit 0: stdin was given) | u32 length of name | name | u32 length of code | code
#
# Runner to agent, any number of frames `u32 header | JSON in UTF-8`. Bits 0 to 30 of the header are the length, at most
# 4 MiB. Bit 31 asks for the byte, and the runner waits for it: all that the program has written by then was passed on.
#
#     {"type": "message", "text": "..."}                     with its newline
#     {"type": "warning", "text": "...", "call": "f(x)"}     the call when there is one
#     {"type": "display", "data": {"image/png": "<base64>"}} a finished page of a plot
#     {"type": "value", "json": <when JSON can carry it without loss>, "repr": "what printing it gives"}
#     {"type": "error", "name": "simpleError", "message": "...", "traceback": "..."}
#
# The value is that of the last expression when it is visible, sent instead of printed; all others are printed. A value
# that prints nothing (a ggplot) is none. The process ends with 0; 1 after an error; the status of quit(); 130 after an
# uncaught interrupt; 125 when the runner itself failed.
#
# The program is R's prompt with its source not echoed. Each expression is evaluated as a promise of the global
# environment, by a loop that is itself a promise: no function is on the stack but the program's, and parent.frame(),
# sys.calls(), return() and break mean what they mean at the prompt. What differs on purpose:
#
# - from Rscript: all is parsed before anything runs. on.exit expressions run after an error. An error ends the program
#   also when options(error = ) is set, after that was run. Warnings are never deferred. readline() reads stdin.
# - from both: options(max.print = 1000), not 99999; the program may set another.
# - without stdin, readline(), browser(), debug() and debugonce() are errors. menu() is one always, as in Rscript.
# - from evaluate and IRkernel: a page is sent when it is finished, that is when the next one begins, its device is
#   closed or the program ends; never as a snapshot, so that none is sent twice or half-drawn. The page comes before
#   what is written after that. repr.plot.width, repr.plot.height (inches) and repr.plot.res (dots per inch) are
#   respected when a device opens. Devices that the program opens by name are its own. Task callbacks are not run.
# - a page of more than 2.9 MiB is not sent; a message says so.
# - messages go to stderr while they are diverted with sink(type = "message"), and in forks of the process.
#
# It is no security boundary, it knows no limits, and it does not capture output.

delayedAssign(".run", eval.env = local({

KIB <- 1024L
MAX_JSON <- MAX_REPR <- MAX_TEXT <- 1024L * KIB
MAX_MESSAGE <- 64L * KIB
MAX_TRACEBACK <- 256L * KIB
MAX_IMAGE <- 2969L * KIB  # 2.9 MiB, base64 of which fits a frame
MAX_NODES <- 50000L  # of JSON: the agent drops what has more
MAX_DEPTH <- 64L
MAX_FRAMES <- 40L
MAX_PRINT <- 1000L  # elements of a value; R's 99,999 are more than anybody reads
NO_STDIN <- "no standard input: pass the text as `stdin`"
NO_DEBUGGER <- "no standard input for the debugger: pass its commands as `stdin`"

# All that changes. The functions themselves are locked before the program starts.
state <- new.env(parent = emptyenv())
state$pid <- Sys.getpid()
state$ended <- FALSE      # the program has ended in a way that needs no further report
state$reported <- FALSE   # an error was reported: the program is ending
state$status <- 1L        # what a jump to top level ends with
state$lines <- NULL       # where the expressions of the program begin
state$line <- NULL        # where the current one does
state$message <- NULL     # of the last error before it
state$warnings <- list()  # of the current expression
state$nodes <- 0L         # that the JSON of the value may still have
state$devices <- list()   # ours, as opened: number, pattern of its files, pages sent

# Where warnings() finds last.warning: the base environment takes no new names.
past <- new.env(parent = emptyenv())

# -- the channel to the agent ------------------------------------------------------------------------------------------

u32 <- function(bytes) sum(as.integer(bytes) * c(16777216, 65536, 256, 1))

read_job <- function() {
    channel <- file("/proc/self/fd/3", "rb", raw = TRUE)
    on.exit(close(channel))
    take <- function(size) {
        data <- readBin(channel, "raw", size)
        if (length(data) < size) stop("the agent sent no whole job")
        data
    }
    flags <- as.integer(take(1L))
    name <- take(u32(take(4L)))
    list(stdin = flags %% 2L == 1L, name = utf8(rawToChar(name)), code = take(u32(take(4L))))
}

is_ours <- function() Sys.getpid() == state$pid

# Sends a frame and waits until the agent has taken it. An interrupt meanwhile comes afterwards: no frame is torn.
send <- function(type, ...) {
    fields <- c(...)
    text <- paste0(",\"", names(fields), "\":", fields, collapse = "")
    data <- charToRaw(paste0("{\"type\":\"", type, "\"", text, "}"))
    header <- as.raw(c(128L, length(data) %/% c(65536L, 256L, 1L) %% 256L))
    suspendInterrupts({
        flush(getConnection(1L))
        channel <- file("/proc/self/fd/4", "wb", raw = TRUE)
        writeBin(c(header, data), channel)
        close(channel)
        channel <- file("/proc/self/fd/3", "rb", raw = TRUE)
        readBin(channel, "raw", 1L)
        close(channel)
    })
    invisible()
}

# -- text and JSON, bounded --------------------------------------------------------------------------------------------

# The text in UTF-8, marked as such; what is no UTF-8 is replaced.
utf8 <- function(text) {
    text <- enc2utf8(text)
    bad <- !validUTF8(text)
    if (any(bad)) text[bad] <- iconv(text[bad], "UTF-8", "UTF-8", sub = "\ufffd")
    Encoding(text) <- "UTF-8"
    text
}

# The text, or its head and tail around a note, in about `limit` bytes.
cut_text <- function(text, limit) {
    bytes <- charToRaw(text)
    size <- length(bytes)
    if (size <= limit) return(text)
    half <- limit %/% 2L - 32L
    head <- iconv(rawToChar(bytes[seq_len(half)]), "UTF-8", "UTF-8", sub = "")
    tail <- iconv(rawToChar(bytes[seq.int(size - half + 1L, size)]), "UTF-8", "UTF-8", sub = "")
    utf8(sprintf("%s\n[... %d bytes left out ...]\n%s", head, size - 2L * half, tail))
}

# JSON strings of texts in UTF-8.
quote_text <- function(text) {
    text <- gsub("\\", "\\\\", text, fixed = TRUE, useBytes = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE, useBytes = TRUE)
    text <- gsub("\n", "\\n", text, fixed = TRUE, useBytes = TRUE)
    if (any(grepl("[\001-\037]", text, perl = TRUE, useBytes = TRUE)))
        for (code in 1:31)
            text <- gsub(rawToChar(as.raw(code)), sprintf("\\u%04x", code), text, fixed = TRUE, useBytes = TRUE)
    paste0("\"", text, "\"")
}

# The text as a JSON string of about `limit` bytes at most.
bounded <- function(text, limit) {
    text <- utf8(paste(text, collapse = "\n"))
    size <- limit
    repeat {
        json <- quote_text(cut_text(text, size))
        excess <- nchar(json, "bytes") / limit
        if (excess <= 1) return(json)
        size <- as.integer(min(size / excess, size - 64))
    }
}

base64 <- local({
    alphabet <- charToRaw("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    function(data) {
        size <- length(data)
        fill <- -size %% 3L
        x <- matrix(as.integer(c(data, raw(fill))), 3L)
        x <- rbind(x[1L, ] %/% 4L, x[1L, ] %% 4L * 16L + x[2L, ] %/% 16L,
                   x[2L, ] %% 16L * 4L + x[3L, ] %/% 64L, x[3L, ] %% 64L)
        out <- alphabet[x + 1L]
        if (fill) out[seq.int(length(out) - fill + 1L, length(out))] <- charToRaw("=")
        rawToChar(out)
    }
})

# JSON texts of the elements of a vector, or NULL when JSON cannot carry them without loss. Runs none of the program's
# code: of classes only factors and dates are known.
elements <- function(x) {
    type <- typeof(x)
    class <- oldClass(x)
    known <- if (is.null(class)) "names" else c("names", "class", if (is.factor(x)) "levels")
    if (isS4(x) || !all(names(attributes(x)) %in% known)) return(NULL)
    if (!is.null(class)) {
        plain <- unclass(x)
        if (identical(class, "factor") || identical(class, c("ordered", "factor")))
            x <- attr(x, "levels")[plain]
        else if (identical(class, "Date") && all(is.na(plain) | is.finite(plain) & plain %% 1 == 0))
            x <- format.Date(x)
        else return(NULL)
        type <- "character"
    }
    text <- switch(type,
        logical = ifelse(x, "true", "false"),
        integer = sprintf("%d", x),
        double = {
            if (any(is.nan(x) | is.infinite(x))) return(NULL)
            text <- sprintf("%.15g", x)
            there <- which(!is.na(x))
            inexact <- there[as.numeric(text[there]) != x[there]]
            text[inexact] <- sprintf("%.17g", x[inexact])
            text
        },
        character = {
            x <- enc2utf8(as.vector(x))
            if (!all(validUTF8(x) & Encoding(x) != "bytes")) return(NULL)
            quote_text(x)
        },
        return(NULL))
    text[is.na(x)] <- "null"
    as.vector(text)
}

# Keys of an object: NULL without names, FALSE when they are not fit.
keys <- function(x) {
    names <- attr(x, "names")
    if (is.null(names)) return(NULL)
    names <- enc2utf8(names)
    if (anyNA(names) || !all(nzchar(names)) || anyDuplicated(names) || !all(validUTF8(names))) return(FALSE)
    paste0(quote_text(names), ":", recycle0 = TRUE)
}

wrap <- function(open, items, close) paste0(open, paste(items, collapse = ","), close)

# Whether there is room for so many nodes more: brackets, commas and colons, as the agent counts.
fits <- function(nodes) (state$nodes <- state$nodes - max(nodes, 1)) >= 0

rows <- function(x) {
    labels <- attr(x, "row.names")
    if (!fits(length(labels) * (1 + 2 * (length(unclass(x)) + is.character(labels))))) return(NULL)
    kept <- c("names", "row.names", "class", ".internal.selfref")
    columns <- lapply(unclass(x), elements)
    attr(x, "row.names") <- NULL
    names <- keys(unclass(x))
    size <- length(labels)
    if (!all(names(attributes(x)) %in% kept) || !is.character(names) || !all(lengths(columns) == size)) return(NULL)
    if (any(vapply(columns, is.null, NA))) return(NULL)
    if (is.character(labels)) {
        columns <- c(columns, list(elements(labels)))
        names <- c(names, "\"_row\":")
    }
    if (size == 0L || length(columns) == 0L) return(if (size == 0L) "[]")
    wrap("[", paste0("{", do.call(paste, c(Map(paste0, names, columns, USE.NAMES = FALSE), sep = ",")), "}"), "]")
}

FRAMES <- list("data.frame", c("tbl_df", "tbl", "data.frame"), c("data.table", "data.frame"))

# JSON of a value, or NULL.
to_json <- function(x, depth = 0L) {
    if (depth == 0L) state$nodes <- MAX_NODES - 1L
    if (is.null(x)) return("null")
    if (depth > MAX_DEPTH || !(is.atomic(x) || typeof(x) == "list")) return(NULL)
    class <- oldClass(x)
    plain <- is.atomic(x) || is.null(class)
    named <- !is.null(attr(x, "names"))
    scalar <- is.atomic(x) && length(unclass(x)) == 1L && !named
    if (plain && !scalar && !fits(length(unclass(x)) * (1 + named))) return(NULL)
    if (is.atomic(x)) {
        items <- elements(x)
        if (is.null(items)) return(NULL)
    } else if (!is.null(class)) {
        return(if (any(vapply(FRAMES, identical, NA, class))) rows(x))
    } else {
        if (!all(names(attributes(x)) %in% "names")) return(NULL)
        items <- character(length(x))
        size <- 0
        for (i in seq_along(x)) {
            item <- to_json(x[[i]], depth + 1L)
            if (is.null(item) || (size <- size + nchar(item, "bytes")) > MAX_JSON) return(NULL)
            items[i] <- item
        }
    }
    names <- keys(x)
    if (is.logical(names)) NULL
    else if (!is.null(names)) wrap("{", paste0(names, items, recycle0 = TRUE), "}")
    else if (length(items) == 1L && typeof(x) != "list") items
    else wrap("[", items, "]")
}

# -- plots -------------------------------------------------------------------------------------------------------------

# The device that R opens when the program draws without having opened one.
device <- function(width = getOption("repr.plot.width", 8), height = getOption("repr.plot.height", 6), ...,
                   res = getOption("repr.plot.res", 100)) {
    directory <- file.path(tempdir(), ".pages")
    dir.create(directory, showWarnings = FALSE, recursive = TRUE, mode = "0700")
    stem <- sprintf("device%d-", length(state$devices) + 1L)
    pattern <- file.path(directory, paste0(stem, "%d.png"))
    if (capabilities("cairo"))
        grDevices::png(pattern, width, height, "in", res = res, type = "cairo")
    else if (requireNamespace("ragg", quietly = TRUE))
        ragg::agg_png(pattern, width, height, "in", res = res)
    else
        grDevices::png(pattern, width, height, "in", res = res)
    grDevices::dev.control("enable")  # dev.copy() and recordPlot() work as on a screen
    number <- grDevices::dev.cur()
    state$devices <- c(state$devices, list(list(number = number, pattern = pattern, sent = 0L)))
    invisible()
}

# Whether the device is still open, not one of the program's under its number.
is_open <- function(own) {
    list <- get(".Devices", baseenv())
    own$number <= length(list) && identical(attr(list[[own$number]], "filepath"), own$pattern)
}

# Sends the pages that are finished: all but the last of an open device. The file of a page is made when it begins.
send_pages <- function() {
    if (!is_ours()) return(invisible())
    for (i in seq_along(state$devices)) {
        own <- state$devices[[i]]
        if (is.null(own)) next
        open <- is_open(own)
        repeat {
            page <- own$sent + 1L
            path <- sprintf(own$pattern, page)
            if (!file.exists(if (open) sprintf(own$pattern, page + 1L) else path)) break
            state$devices[[i]]$sent <- own$sent <- page
            send_image(path)
            unlink(path)
        }
        if (!open) state$devices[i] <- list(NULL)
    }
    invisible()
}

send_image <- function(path) {
    size <- file.size(path)
    if (size > MAX_IMAGE) {
        text <- sprintf("A plot of %.1f MiB is too large to be shown: %s, or save it with png().\n", size / 1048576,
                        "lower repr.plot.width, repr.plot.height or repr.plot.res")
        send("message", text = bounded(text, KIB))
    } else if (size > 0)
        send("display", data = paste0("{\"image/png\":\"", base64(readBin(path, "raw", size)), "\"}"))
}

close_devices <- function() {
    for (own in state$devices)
        if (!is.null(own) && is_open(own)) grDevices::dev.off(own$number)
    send_pages()
}

# -- conditions --------------------------------------------------------------------------------------------------------

deparse_line <- function(call) {
    text <- deparse(call, 120L, nlines = 2L)
    if (length(text) > 1L || nchar(text[1L]) > 120L) paste(substr(text[1L], 1L, 116L), "...") else text
}

place <- function(call) {
    ref <- attr(call, "srcref")
    if (is.null(ref)) return(NULL)
    paste0(attr(ref, "srcfile")$filename, "#", ref[1L])
}

# The frames of the program, up to `top`, and without those that only raise the condition.
user_frames <- function(top) {
    calls <- sys.calls()[seq_len(top)]
    where <- lapply(calls, place)
    here <- if (top > 0L) where[[top]]
    raising <- c("stop", "signalCondition", "abort", "signal_abort", ".handleSimpleError", "warning",
                 ".signalSimpleWarning", "withRestarts", "withOneRestart", "doWithOneRestart")
    while (top > 0L) {
        name <- calls[[top]][[1L]]
        if (is.call(name) && length(name) == 3L) name <- name[[3L]]
        if (!is.symbol(name) || !(as.character(name) %in% raising)) break
        if (!is.null(where[[top]])) here <- where[[top]]
        top <- top - 1L
    }
    frames <- seq_len(top)
    if (is.null(here) && length(frames) == 0L) here <- state$line
    list(calls = calls[frames], where = where[frames], here = here)
}

traceback_text <- function(title, message, frames) {
    at <- if (!is.null(frames$here)) sprintf(" (%s)", frames$here) else ""
    text <- paste0(title, at, ": ", message)
    size <- length(frames$calls)
    if (size == 0L) return(text)
    chosen <- seq_len(size)
    if (size > MAX_FRAMES) chosen <- c(head_of(chosen, MAX_FRAMES %/% 2L), tail_of(chosen, MAX_FRAMES %/% 2L))
    lines <- vapply(chosen, function(i) {
        where <- frames$where[[i]]
        if (is.null(where) && i == 1L) where <- state$line
        sprintf("%2d. %s%s", i, deparse_line(frames$calls[[i]]), if (is.null(where)) "" else paste0(" at ", where))
    }, "")
    if (size > MAX_FRAMES)
        lines <- append(lines, sprintf("    [... %d calls left out ...]", size - MAX_FRAMES), MAX_FRAMES %/% 2L)
    paste(c(text, "Traceback:", lines), collapse = "\n")
}

head_of <- function(x, n) x[seq_len(n)]
tail_of <- function(x, n) x[seq.int(length(x) - n + 1L, length(x))]

report <- function(name, message, traceback) {
    state$ended <- state$reported <- TRUE
    release_capture()
    send("error", name = bounded(name, KIB), message = bounded(message, MAX_MESSAGE),
         traceback = bounded(traceback, MAX_TRACEBACK))
}

call_of <- function(condition) tryCatch(conditionCall(condition), error = function(e) NULL)

text_of <- function(condition) {
    text <- tryCatch(conditionMessage(condition), error = function(e) NULL)
    if (is.character(text)) paste(text, collapse = "\n") else "<conditionMessage() failed>"
}

# Ends the program: its on.exit expressions run, then R goes on with `.First.sys`, which is `finish`.
end_program <- function(status) {
    state$status <- status
    if (exists(".First", globalenv(), inherits = FALSE)) rm(".First", envir = globalenv())  # R would call it
    options(error = quote(invisible()))  # without one R ends here instead, with "Execution halted" on stderr
    invokeRestart("abort")
}

# Called for every condition that the program does not handle. An interrupt waits until the program is back: here it
# would meet no handler.
on_condition <- function(condition) {
    if (!is_ours()) return(invisible())
    top <- sys.nframe() - 1L
    suspendInterrupts({
        if (inherits(condition, "error")) on_error(condition, top)
        else if (inherits(condition, "warning")) on_warning(condition)
        else if (inherits(condition, "message")) on_message(condition)
        else if (inherits(condition, "interrupt")) on_interrupt(top)
        # stop() ends the program with a condition of any class.
        else if (top > 0L && identical(sys.function(top), stop)) on_error(condition, top)
    })
}

on_message <- function(condition) {
    if (is.null(findRestart("muffleMessage", condition)) || sink.number("message") != 2L) return()
    text <- text_of(condition)
    if (inherits(condition, "rlang_message") && !endsWith(text, "\n")) text <- paste0(text, "\n")  # as rlang writes it
    send("message", text = bounded(text, MAX_TEXT))
    invokeRestart("muffleMessage")
}

on_warning <- function(condition) {
    level <- getOption("warn")
    if (is.null(findRestart("muffleWarning", condition)) || is.numeric(level) && level >= 2) return()
    if (!is.numeric(level) || level >= 0) {
        text <- text_of(condition)
        call <- call_of(condition)
        if (length(state$warnings) < 50L) state$warnings <- c(state$warnings, structure(list(call), names = text))
        send("warning", text = bounded(text, MAX_TEXT),
             call = if (!is.null(call)) bounded(deparse_line(call), KIB))
    }
    invokeRestart("muffleWarning")
}

on_interrupt <- function(top) {
    if (state$reported) return()
    report("interrupt", "interrupted", traceback_text("Error", "interrupted", user_frames(top)))
    end_program(130L)
}

on_error <- function(condition, top) {
    if (state$reported) return()
    # signalCondition() goes on when nobody handles the condition, but for the one of rlang, which then stops.
    if (top > 0L && identical(sys.function(top), signalCondition)) {
        caller <- if (top > 1L) environment(sys.function(top - 1L))
        if (!isNamespace(topenv(caller)) || getNamespaceName(topenv(caller)) != "rlang") return()
    }
    message <- text_of(condition)
    call <- call_of(condition)
    title <- if (is.null(call)) "Error" else paste("Error in", deparse_line(call))
    report(class(condition)[1L], message, traceback_text(title, message, user_frames(top)))
    allowInterrupts(run_error_option())
    end_program(1L)
}

run_error_option <- function() {
    option <- getOption("error")
    options(error = NULL)  # an error in it is final
    if (is.function(option)) option()
    else if (is.expression(option)) for (part in option) eval(part, globalenv())
    else if (is.language(option)) eval(option, globalenv())
}

# -- what the program finds --------------------------------------------------------------------------------------------

# Replaces a function of base.
redefine <- function(name, value) {
    base <- baseenv()
    unlockBinding(name, base)
    assign(name, value, base)
    lockBinding(name, base)
}

set_up_stdin <- function(given) {
    if (given) {
        redefine("readline", function(prompt = "") {
            cat(prompt)
            line <- readLines(stdin(), 1L)
            if (length(line) == 0L) stop("end of standard input")
            line
        })
        return(invisible())
    }
    redefine("readline", function(prompt = "") {
        cat(prompt)
        stop(NO_STDIN)
    })
    redefine("browser", function(text = "", condition = NULL, expr = TRUE, skipCalls = 0L) if (expr) stop(NO_DEBUGGER))
    redefine("debug", function(fun, text = "", condition = NULL, signature = NULL) stop(NO_DEBUGGER))
    redefine("debugonce", function(fun, text = "", condition = NULL, signature = NULL) stop(NO_DEBUGGER))
}

set_up_quit <- function() {
    quit <- function(save = "default", status = 0, runLast = TRUE) {
        if (is_ours()) {
            state$ended <- TRUE
            release_capture()
            close_devices()
        }
        .Internal(quit(save, status, runLast))
    }
    redefine("quit", quit)
    redefine("q", quit)
}

# When utils is loaded, R asks two shells for the name of the system, of which it uses no more than this. It reads
# /etc/os-release then.
load_utils <- function() {
    saved <- list(Sys.which = Sys.which, system = system)
    on.exit(for (name in names(saved)) redefine(name, saved[[name]]))
    redefine("Sys.which", function(names) c(uname = "uname"))
    redefine("system", function(...) "Linux")
    loadNamespace("utils")
}

# -- the run -----------------------------------------------------------------------------------------------------------

parse_code <- function(name, code) {
    if (any(code == 0L)) stop(simpleError("source code cannot contain null bytes"))
    text <- rawToChar(code)
    Encoding(text) <- "UTF-8"
    if (!validUTF8(text)) stop(simpleError("source code is not UTF-8"))
    text <- gsub("\r\n", "\n", sub("^\ufeff", "", text), fixed = TRUE)
    lines <- strsplit(text, "\n", fixed = TRUE)[[1L]]
    parse(text = lines, srcfile = srcfilecopy(name, lines), keep.source = TRUE, encoding = "UTF-8")
}

# Prints as the prompt does, whatever the program calls `print` and `show`.
print_call <- function(value) {
    mask <- new.env(parent = globalenv())
    mask$x <- value
    mask$print <- base::print
    mask$print.default <- base::print.default
    if (isS4(value)) mask$show <- methods::show
    call <- if (isS4(value)) quote(show(x)) else if (is.object(value) || is.function(value)) quote(print(x))
            else quote(print.default(x))
    list(call, mask)
}

# Standard output goes to a buffer until `end_capture`.
start_capture <- function() {
    state$buffer <- rawConnection(raw(0L), "wb")
    sink(state$buffer)
}

end_capture <- function() {
    buffer <- state$buffer
    if (is.null(buffer)) return("")
    state$buffer <- NULL
    while (sink.number() > 0L) sink()
    data <- tryCatch(rawConnectionValue(buffer), error = function(e) raw(0L))
    tryCatch(close(buffer), error = function(e) NULL)
    rawToChar(data[data != 0L])
}

# What was captured is printed after all: the program ends.
release_capture <- function() {
    text <- end_capture()
    if (nzchar(text)) cat(text)
}

send_value <- function(value, text) {
    close_devices()
    if (!nzchar(text)) return(invisible())
    json <- to_json(value)
    if (!is.null(json) && nchar(json, "bytes") > MAX_JSON) json <- NULL
    send("value", json = json, repr = bounded(sub("\n$", "", text), MAX_REPR))
}

# Leaves the values of the last expression where R does.
keep_value <- function(value) {
    redefine(".Last.value", value)
    if (length(state$warnings)) {
        assign("last.warning", state$warnings, past)
        state$warnings <- list()
    }
}

# In place of R's `.First.sys`, which R calls next when a jump to top level has left this file.
finish <- function() {
    options(error = NULL)
    suspendInterrupts({
        if (!state$ended) report_unseen()
        close_devices()
        .Internal(quit("no", state$status, FALSE))
    })
}

# An error that no handler saw: one for want of stack, or one after the program removed the handlers.
report_unseen <- function() {
    message <- geterrmessage()
    message <- if (identical(message, state$message)) "" else sub("\n$", "", message)
    report("simpleError", if (nzchar(message)) sub("^Error[^:]*: *\n? *", "", message) else "evaluation was aborted",
           if (nzchar(message)) message else "Error: evaluation was aborted")
}

at_exit <- function(...) {
    if (!is_ours()) return()
    if (!state$ended) report_unseen()
    close_devices()
}

prepare <- function() {
    rm(".run", envir = globalenv())
    options(error = quote(invisible()))  # failures of the runner lead to `.First.sys`, and so to 125
    Sys.unsetenv(c("R_PROFILE_USER", "R_ENVIRON_USER"))
    first <- .First.sys
    redefine(".First.sys", function() .Internal(quit("no", 125L, FALSE)))
    load_utils()
    first()
    options(device = device, menu.graphics = FALSE, keep.source = TRUE, max.print = MAX_PRINT)
    set_up_quit()
    setHook("plot.new", function(...) send_pages())
    setHook("grid.newpage", function(...) send_pages())
    seen <- list2env(list(baseenv = function() past), parent = baseenv())
    redefine("warnings", `environment<-`(warnings, seen))
    lockEnvironment(environment(prepare), TRUE)
}

# Reads the job, and from then on what fails is the program's.
start <- function() {
    job <- read_job()
    set_up_stdin(job$stdin)
    redefine(".First.sys", finish)
    options(error = NULL)
    reg.finalizer(state, at_exit, TRUE)
    globalCallingHandlers(condition = on_condition)
    code <- tryCatch(parse_code(job$name, job$code), error = identity)
    if (inherits(code, "error")) {
        message <- conditionMessage(code)
        report("parseError", message, paste0("Error: ", message))
        end_program(1L)
    }
    state$lines <- paste0(job$name, "#", vapply(attr(code, "srcref"), `[`, 1L, 1L), recycle0 = TRUE)
    code
}

new.env()
}, new.env(parent = baseenv())), value = {
    prepare()
    code <- start()
    for (index in seq_along(code)) {
        state$line <- state$lines[index]
        state$message <- geterrmessage()
        .Internal(delayedAssign("value", code[[index]], globalenv(), environment()))
        result <- .Internal(withVisible(value))
        if (result$visible) {
            call <- print_call(result$value)
            captured <- index == length(code) && sink.number() == 0L
            if (captured) start_capture()
            .Internal(delayedAssign("printed", call[[1L]], call[[2L]], environment()))
            printed
            if (captured) send_value(result$value, end_capture())
            printed <- call <- NULL  # nothing but .Last.value keeps a value alive
        }
        keep_value(result$value)
        send_pages()
    }
    state$line <- NULL
    state$status <- 0L
    state$ended <- TRUE
    close_devices()
    options(error = NULL)
    .Internal(quit("no", 0L, TRUE))
})
.run
