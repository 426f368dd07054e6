"""Tests of the R runner, with the real R and real pipes.

    /usr/bin/python3 -m unittest test_runner        (in this directory)

Each test starts the runner as the agent does, with the documented command line and environment, and plays the agent:
it keeps what comes on stdout, on stderr and in frames in one order, and answers the frames that ask for it.
"""

import base64
import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE = 60
NO_STDIN = "no standard input: pass the text as `stdin`"
NO_DEBUGGER = "no standard input for the debugger: pass its commands as `stdin`"
MIB = 1024 * 1024
ACKNOWLEDGE = 1 << 31


def setUpModule():
    global base, environment, binary, packages
    wrapper = shutil.which("R")
    if wrapper is None:
        raise AssertionError("R is not installed")
    with open(wrapper) as file:
        assigned = dict(re.findall(r"^(R_\w+)=(/.*)$", file.read(), re.MULTILINE))
    home = assigned["R_HOME_DIR"]
    binary = os.path.join(home, "bin", "exec", "R")
    base = tempfile.mkdtemp(prefix="runner-test-")
    environment = {
        "R_HOME": home, "R_ARCH": "", "LD_LIBRARY_PATH": os.path.join(home, "lib"), "R_ENVIRON_USER": "",
        "R_ENVIRON": "", "R_PROFILE": "",
        "R_PROFILE_USER": os.path.join(HERE, "runner.R"), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
        "TZ": "UTC", "TMPDIR": base, **{key: assigned[key] for key in ("R_SHARE_DIR", "R_INCLUDE_DIR", "R_DOC_DIR")}}
    packages = set(run("cat(list.files(.libPaths()))").out.split())


def tearDownModule():
    shutil.rmtree(base)


def needs(*names):
    """Names the packages of a test; it fails where one is not installed."""
    def decorate(test):
        def wrapped(self):
            for name in names:
                if name not in packages:
                    self.fail("the package %s is not installed" % name)
            test(self)
        wrapped.__name__ = test.__name__
        return wrapped
    return decorate


class Run:
    """A started program, and all that came from it, in order: ("out", bytes), ("err", bytes), ("frame", object)."""

    def __init__(self, code, stdin=None, name="<code>", workspace=None, cut=None, on_frame=None):
        self.on_frame = on_frame  # called before a frame is answered
        self.code, self.signal = None, None
        self.events, self.buffer, self.headers = [], b"", []
        self.workspace = workspace or tempfile.mkdtemp(dir=base)
        pipes = [os.pipe() for _ in range(5)]  # stdin, stdout, stderr, jobs, reports
        ends = [pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][0], pipes[4][1]]
        if stdin is None:
            os.close(ends[0])
            ends[0] = os.open(os.devnull, os.O_RDONLY)
        # Numbers out of the way of 0 to 4 first, so that no dup2 meets an end that is needed later.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
        actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(high)]
        here = os.getcwd()
        os.chdir(self.workspace)
        try:
            self.pid = os.posix_spawn(binary, [binary, "--no-echo", "--no-restore", "--no-save"],
                                      dict(environment, HOME=self.workspace), file_actions=actions)
        finally:
            os.chdir(here)
        for end in high + ends:
            os.close(end)
        self.feed, self.job = pipes[0][1], pipes[3][1]
        self.kinds = {pipes[1][0]: "out", pipes[2][0]: "err", pipes[4][0]: "frame"}
        self.to_feed = (stdin or "").encode()
        name = name.encode()
        code = code if isinstance(code, bytes) else textwrap.dedent(code).encode()
        data = struct.pack(">BI", stdin is not None, len(name)) + name + struct.pack(">I", len(code)) + code
        self.to_send = data[:cut]
        self.to_close = cut is not None
        self.open = dict(self.kinds)

    def _take(self, fd):
        data = os.read(fd, 65536)
        if not data:
            os.close(fd)
            del self.open[fd]
        elif self.open[fd] != "frame":
            self.events.append((self.open[fd], data))
        else:
            self.buffer += data
            self._frames()

    def _frames(self):
        while len(self.buffer) >= 4:
            (header,) = struct.unpack(">I", self.buffer[:4])
            size = header & ~ACKNOWLEDGE
            assert size <= 4 * MIB, "a too long frame"
            if len(self.buffer) < 4 + size:
                return
            frame, self.buffer = json.loads(self.buffer[4:4 + size].decode("utf-8")), self.buffer[4 + size:]
            if header & ACKNOWLEDGE:
                self._drain()
            self.headers.append(header)
            self.events.append(("frame", frame))
            if self.on_frame:
                self.on_frame(self)
            if header & ACKNOWLEDGE:
                os.write(self.job, b"\x06")

    def _drain(self):
        while True:
            ready = select.select([fd for fd, kind in self.open.items() if kind != "frame"], [], [], 0)[0]
            if not ready:
                return
            for fd in ready:
                self._take(fd)

    def _step(self, deadline):
        writers = [self.job] * bool(self.to_send) + [self.feed] * bool(self.to_feed)
        ready, free, _ = select.select(list(self.open), writers, [], max(0, deadline - time.monotonic()))
        if not ready and not free:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError("the program does not end: %r" % self.events)
        for fd in free:
            if fd == self.job:
                self.to_send = self.to_send[os.write(fd, self.to_send[:4096]):]
            else:
                try:
                    self.to_feed = self.to_feed[os.write(fd, self.to_feed[:4096]):]
                except BrokenPipeError:
                    self.to_feed = b""
        if not self.to_send and self.to_close:
            os.close(self.job)
            self.job, self.to_close = None, False
        if not self.to_feed and self.feed is not None:
            os.close(self.feed)
            self.feed = None
        for fd in ready:
            if fd in self.open:
                self._take(fd)

    def read_until(self, text):
        """Reads until stdout holds a text: the program has come so far."""
        deadline = time.monotonic() + DEADLINE
        while text.encode() not in b"".join(data for kind, data in self.events if kind == "out"):
            assert self.open, self.events
            self._step(deadline)
        return self

    def end(self):
        deadline = time.monotonic() + DEADLINE
        while self.open:
            self._step(deadline)
        _, status = os.waitpid(self.pid, 0)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        for fd in self.job, self.feed:
            if fd is not None:
                os.close(fd)
        assert not self.buffer, "a torn frame"
        return self

    def _text(self, kind):
        return b"".join(data for k, data in self.events if k == kind).decode("utf-8")

    @property
    def out(self):
        return self._text("out")

    @property
    def err(self):
        return self._text("err")

    @property
    def frames(self):
        return [frame for kind, frame in self.events if kind == "frame"]

    @property
    def order(self):
        """What a reader sees: neighbouring output joined, of frames the type and, where there is one, the text."""
        seen = []
        for kind, data in self.events:
            if kind == "frame":
                seen.append((data["type"], data.get("text", data.get("message", data.get("repr")))))
            elif seen and seen[-1][0] == kind:
                seen[-1] = kind, seen[-1][1] + data.decode()
            else:
                seen.append((kind, data.decode()))
        return [(kind, text) if text is not None else kind for kind, text in seen]

    def only(self, kind):
        assert [frame["type"] for frame in self.frames] == [kind], self
        return self.frames[0]

    def of(self, kind):
        return [frame for frame in self.frames if frame["type"] == kind]

    def __repr__(self):
        return "code %r, signal %r, events %.3000r" % (self.code, self.signal, self.events)


def run(code, stdin=None, name="<code>", workspace=None):
    return Run(code, stdin, name, workspace).end()


def png_size(frame):
    data = base64.b64decode(frame["data"]["image/png"], validate=True)
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND", "no whole PNG"
    return struct.unpack(">II", data[16:24])


class Case(unittest.TestCase):
    maxDiff = None

    def check(self, code, *order, status=0, **options):
        """Runs a program and compares all that it gives, in order."""
        result = run(code, **options)
        self.assertEqual(result.order, list(order), result)
        self.assertEqual(result.code, status, result)
        return result

    def value(self, code, **options):
        result = run(code, **options)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.err, "", result)
        return result.only("value")

    def json(self, code, expected):
        frame = self.value(code)
        self.assertIn("json", frame)
        # As text: 1, 1.0 and true are equal in Python.
        self.assertEqual(json.dumps(frame["json"]), json.dumps(expected))

    def no_json(self, code):
        self.assertNotIn("json", self.value(code))

    def error(self, code, name, message, out="", status=1, **options):
        result = run(code, **options)
        self.assertEqual(result.code, status, result)
        self.assertEqual(result.out, out, result)
        errors = result.of("error")
        self.assertEqual(len(errors), 1, result)
        self.assertEqual((errors[0]["name"], errors[0]["message"]), (name, message))
        return errors[0]["traceback"]


class Output(Case):
    def test_values_are_printed_but_the_last_is_reported(self):
        self.check("1\n2; 3\n4", ("out", "[1] 1\n[1] 2\n[1] 3\n"), ("value", "[1] 4"))

    def test_assignments_and_invisible_values_are_silent(self):
        self.check("x <- 1\ninvisible(2)\nf <- function() invisible(3)\nf()")

    def test_parentheses_make_visible(self):
        self.check("(invisible(5))\n(x <- 6)", ("out", "[1] 5\n"), ("value", "[1] 6"))

    def test_only_the_last_expression_counts(self):
        self.check("5\nx <- 1", ("out", "[1] 5\n"))

    def test_control_flow_as_at_the_prompt(self):
        self.check("for (i in 1:2) i\nif (FALSE) 1\nNULL\nwhile (FALSE) 1", ("out", "NULL\n"))

    def test_an_empty_program(self):
        for code in "", "\n\n", "# nothing":
            with self.subTest(code):
                self.check(code)

    def test_stdout_and_stderr_are_the_programs(self):
        result = run('cat("a"); cat("b\\n", file = stderr()); write("c", stdout())')
        self.assertEqual((result.out, result.err, result.frames), ("ac\n", "b\n", []))

    def test_output_comes_at_once(self):
        result = Run('cat("here"); Sys.sleep(30)').read_until("here")
        os.kill(result.pid, signal.SIGKILL)
        result.end()
        self.assertEqual((result.out, result.signal), ("here", signal.SIGKILL))

    def test_children_write_in_order(self):
        self.check("""
            cat("1\\n"); system("echo 2"); message("3"); system("echo 4"); cat("5\\n")
            x <- system2("echo", "6", stdout = TRUE); x
            p <- pipe("cat"); writeLines("7", p); close(p); cat("8\\n")""",
            ("out", "1\n2\n"), ("message", "3\n"), ("out", '4\n5\n[1] "6"\n7\n8\n'))

    def test_utf8(self):
        result = self.check('größe <- "naïve — 日本 😀"\nprint(größe)\nnchar(größe)\ngröße',
                            ("out", '[1] "naïve — 日本 😀"\n[1] 12\n'), ("value", '[1] "naïve — 日本 😀"'))
        self.assertEqual(result.frames[0]["json"], "naïve — 日本 😀")

    def test_other_bytes_do_not_break_frames(self):
        result = run('message("a\\xffb")\nwarning("é\\001\\t\\"\\\\")')
        self.assertEqual(result.of("message")[0]["text"], "a<ff>b\n")
        self.assertEqual(result.of("warning")[0]["text"], "\u00e9\x01\t\"\\")

    def test_latin1_text_becomes_utf8(self):
        self.json('x <- "\\xe9"; Encoding(x) <- "latin1"; x', "é")

    def test_capture_and_sinks(self):
        self.check("""
            x <- capture.output(print(1), cat("two"), message("m"))
            sink("file.txt"); cat("hidden\\n"); message("seen"); sink()
            con <- textConnection("text", "w"); sink(con); print(3); sink(); close(con)
            c(x, readLines("file.txt"), text)""",
            ("message", "m\n"), ("message", "seen\n"), ("value", '[1] "[1] 1"  "two"    "hidden" "[1] 3" '))

    def test_a_sink_left_open_takes_the_last_value(self):
        result = self.check('sink("file.txt")\nmessage("m")\n42', ("message", "m\n"))
        with open(os.path.join(result.workspace, "file.txt")) as file:
            self.assertEqual(file.read(), "[1] 42\n")

    def test_captured_messages(self):
        self.json('capture.output({message("a"); message("b")}, type = "message")', ["a", "b"])

    def test_all_connections_closed(self):
        self.check('closeAllConnections()\nmessage("still")\nnrow(showConnections())',
                   ("message", "still\n"), ("value", "[1] 0"))

    def test_much_output(self):
        result = run('for (i in 1:20000) cat("0123456789012345678901234567890123456789\\n")\nmessage("end")')
        self.assertEqual(len(result.out), 41 * 20000)
        self.assertEqual(result.order[-1], ("message", "end\n"))


class Values(Case):
    def test_scalars(self):
        for code, expected in (("1L", 1), ("1.5", 1.5), ("TRUE", True), ('"a"', "a"), ("NA", None), ("NULL", None),
                               ("NA_character_", None), ("NA_real_", None), ("100000L", 100000), ("1e5", 100000)):
            with self.subTest(code):
                self.json(code, expected)

    def test_vectors(self):
        self.json("c(1L, NA, 3L)", [1, None, 3])
        self.json("c(TRUE, NA)", [True, None])
        self.json('c("a\\n\\"", NA)', ['a\n"', None])
        self.json("integer(0)", [])

    def test_doubles_are_exact(self):
        values = [0.1, 1 / 3, 1e300, 5e-324, 123456789.12345678, 2.0 ** 60, -1e-7]
        frame = self.value("c(0.1, 1/3, 1e300, 5e-324, 123456789.12345678, 2^60, -1e-7)")
        self.assertEqual(frame["json"], values)

    def test_names_make_objects(self):
        self.json("c(a = 1.5, b = NA)", {"a": 1.5, "b": None})
        self.json("list(a = 1L, b = list(c = c('x', 'y'), d = NULL))", {"a": 1, "b": {"c": ["x", "y"], "d": None}})
        self.json("list(1L, 'a', list())", [1, "a", []])
        self.json("list(1L)", [1])
        self.json("setNames(list(), character())", {})

    def test_data_frames(self):
        self.json("""data.frame(a = 1:2, b = c("x", NA), d = as.Date(c("2020-01-31", NA)), f = factor(c("u", "v")))""",
                  [{"a": 1, "b": "x", "d": "2020-01-31", "f": "u"}, {"a": 2, "b": None, "d": None, "f": "v"}])
        self.json("data.frame(n = 1.5, row.names = 'r')", [{"n": 1.5, "_row": "r"}])
        self.json("data.frame(a = integer())", [])
        self.json("data.frame(a = 1:3)[c(3, 1), , drop = FALSE]", [{"a": 3}, {"a": 1}])

    @needs("tibble")
    def test_tibbles(self):
        self.json("tibble::tibble(a = 1:2)", [{"a": 1}, {"a": 2}])

    def test_factors_and_dates(self):
        self.json("factor(c('u', NA))", ["u", None])
        self.json("as.Date('2020-02-29')", "2020-02-29")

    def test_what_json_cannot_carry(self):
        for code in ("NaN", "c(1, Inf)", "1i", "as.raw(1)", "matrix(1:4, 2)", "quote(x)", "Sys.time()", "sum",
                     "globalenv()",
                     "c(a = 1, a = 2)", "c(a = 1, 2)", "list(1, sum)", "structure(1, class = 'foo')", "y ~ x",
                     "1:200000",
                     "data.frame(a = NaN)", "as.difftime(1, units = 'secs')", "structure(1, note = 'x')",
                     "structure(list(1), class = 'foo')"):
            with self.subTest(code):
                self.no_json(code)

    def test_json_that_the_agent_would_drop_is_not_made(self):
        for template, last in (("1:%d", 49999), ("setNames(1:%d, paste0('n', 1:%d))", 24999),
                               ("data.frame(a = 1:%d)", 16666), ("data.frame(a = 1:%d, row.names = paste(1:%d))", 9999),
                               ("list(1:30000, 1:%d)", 19997), ("rep(list(list()), %d)", 24999)):
            with self.subTest(template):
                code = "options(max.print = 10)\n" + template
                text = json.dumps(self.value(code.replace("%d", str(last)))["json"])
                # As the agent counts; there are none of these characters in the texts.
                nodes = 1 + sum(map(text.count, "[{,:"))
                self.assertTrue(49990 < nodes <= 50000, nodes)
                self.no_json(code.replace("%d", str(last + 1)))

    def test_repr_is_what_printing_gives(self):
        self.assertEqual(self.value("list(a = 1, 2)")["repr"], "$a\n[1] 1\n\n[[2]]\n[1] 2\n")
        self.assertEqual(self.value("factor('a')")["repr"], "[1] a\nLevels: a")
        self.assertEqual(self.value("f <- function(x)   x # same\nf")["repr"], "function(x)   x")

    def test_autoprint_finds_methods(self):
        self.assertEqual(self.value("""
            print.foo <- function(x, ...) cat("<foo>\\n")
            structure(1, class = "foo")""")["repr"], "<foo>")
        self.assertEqual(self.value("""
            setClass("P", representation(n = "numeric"))
            setMethod("show", "P", function(object) cat("<P ", object@n, ">\\n", sep = ""))
            new("P", n = 3)""")["repr"], "<P 3>")
        self.assertEqual(self.value("""
            format.bar <- function(x, ...) "BAR"
            print.bar <- function(x, ...) print(format(x))
            list(structure(1, class = "bar"))""")["repr"], '[[1]]\n[1] "BAR"\n')

    def test_autoprint_is_not_print(self):
        # At the prompt neither a `print` of the program nor methods for implicit classes have a say.
        self.assertEqual(self.value("print <- function(...) cat('mine')\n1")["repr"], "[1] 1")
        self.assertEqual(self.value("print.numeric <- function(x, ...) cat('mine')\n1")["repr"], "[1] 1")

    @needs("R6")
    def test_r6(self):
        self.assertEqual(self.value("""
            A <- R6::R6Class("A", public = list(print = function(...) cat("<A>\\n")))
            A$new()""")["repr"], "<A>")

    def test_a_failing_print_is_an_error(self):
        traceback = self.error("print.foo <- function(x, ...) {\n  cat('half\\n')\n  stop('no')\n}\n"
                               "structure(1, class = 'foo')",
                               "simpleError", "no", out="half\n")
        self.assertEqual(traceback, "Error in print.foo(x) (<code>#3): no\nTraceback:\n"
                                    " 1. print(x) at <code>#5\n 2. print.foo(x)")

    def test_what_a_failing_print_has_printed_comes_first(self):
        self.check("print.foo <- function(x, ...) { cat('half\\n'); stop('no') }\nstructure(1, class = 'foo')",
                   ("out", "half\n"), ("error", "no"), status=1)

    def test_nothing_printed_is_no_value(self):
        self.check("print.foo <- function(x, ...) invisible(x)\nstructure(1, class = 'foo')")

    def test_long_values_are_cut(self):
        frame = self.value('options(max.print = 1e6)\nrep(strrep("é", 30), 20000)')
        self.assertLessEqual(len(frame["repr"].encode()), MIB)
        self.assertIn("bytes left out", frame["repr"])
        self.assertNotIn("json", frame)
        self.no_json('strrep("a", 2e6)')

    def test_printing_ends_early_and_says_so(self):
        frame = self.value("data.frame(a = 1:10000, b = 1)")
        self.assertIn('"max.print") -- omitted 9500 rows ]', frame["repr"])
        self.assertLess(len(frame["repr"]), 10000)
        self.assertTrue(run("print(1:2000)").out.endswith("omitted 1000 entries ]\n"))
        frame = self.value("options(max.print = 1e5)\ndata.frame(a = 1:10000)")
        self.assertEqual(len(frame["repr"].splitlines()), 10001)

    def test_messages_while_printing(self):
        self.check("print.foo <- function(x, ...) {message('m'); warning('w'); cat('foo\\n')}\n"
                   "structure(1, class = 'foo')",
                   ("message", "m\n"), ("warning", "w"), ("value", "foo"))

    def test_values_are_not_kept_alive(self):
        result = run("e <- structure(list(new.env()), class = 'e')\nprint.e <- function(x, ...) cat('<e>\\n')\n"
                     "invisible(reg.finalizer(e[[1]], function(e) cat('gone\\n')))\ne\nrm(e)\ninvisible(gc())\n1")
        self.assertEqual(result.order, [("out", "<e>\ngone\n"), ("value", "[1] 1")])

    def test_last_value(self):
        self.json("3 + 4\n.Last.value * 2", 14)


class Conditions(Case):
    def test_messages_in_order(self):
        self.check('cat("a\\n"); message("b ", 1); cat("c\\n"); message("d", appendLF = FALSE)\ncat("e")',
                   ("out", "a\n"), ("message", "b 1\n"), ("out", "c\n"), ("message", "d"), ("out", "e"))

    def test_warnings_come_at_once_and_once(self):
        result = self.check('f <- function(x) { warning("w", x); cat("on\\n") }\nf(1)\nwarning("top")\nas.integer("x")',
                            ("warning", "w1"), ("out", "on\n"), ("warning", "top"),
                            ("warning", "NAs introduced by coercion"), ("value", "[1] NA"))
        self.assertEqual([frame.get("call") for frame in result.of("warning")], ["f(1)", None, None])

    def test_warnings_of_c_code(self):
        result = self.check('x <- log(-1)\nf <- function() 1:3 + 1:2\ny <- f()', ("warning", "NaNs produced"),
                            ("warning", "longer object length is not a multiple of shorter object length"))
        self.assertEqual([frame["call"] for frame in result.frames], ["log(-1)", "1:3 + 1:2"])

    def test_warnings_anywhere(self):
        self.check("""
            x <- lapply(1:2, function(i) warning("l", i))
            tryCatch({ warning("caught") }, warning = function(w) cat("handler\\n"))
            x <- tryCatch(withCallingHandlers(warning("passed"), warning = function(w) cat("saw\\n")), error = identity)
            f <- function() { on.exit(warning("exit")); invisible() }
            f()""", ("warning", "l1"), ("warning", "l2"), ("out", "handler\nsaw\n"), ("warning", "passed"),
                   ("warning", "exit"))

    def test_suppressed(self):
        self.check('suppressWarnings({warning("w"); as.integer("x")})\nsuppressMessages(message("m"))', ("out",
                                                                                                         "[1] NA\n"))

    def test_the_warn_option(self):
        self.check('options(warn = -1); warning("w")\noptions(warn = 1); warning("now")', ("warning", "now"))
        traceback = self.error('options(warn = 2)\nf <- function() warning("w")\nf()', "simpleError",
                               "(converted from warning) w")
        self.assertEqual(traceback, "Error in f() (<code>#2): (converted from warning) w\nTraceback:\n"
                                    " 1. f() at <code>#3")

    def test_warnings_function(self):
        self.check('for (i in 1:2) warning("w", i)\nnames(warnings())', ("warning", "w1"), ("warning", "w2"),
                   ("value", '[1] "w1" "w2"'))

    def test_a_warning_at_the_very_end(self):
        result = run("reg.finalizer(globalenv(), function(e) warning('late'), onexit = TRUE)")
        self.assertIn("late", result.err + str(result.of("warning")))
        self.assertEqual(result.code, 0)

    def test_custom_conditions(self):
        self.check("""
            cond <- structure(class = c("custom", "condition"), list(message = "hi", call = NULL))
            signalCondition(cond)
            withCallingHandlers({ signalCondition(cond); cat("on\\n") }, custom = function(c) cat("saw\\n"))
            r <- withRestarts(invokeRestart("mine", 7), mine = function(x) x)
            r""", ("out", "NULL\nsaw\non\n"), ("value", "[1] 7"))

    def test_signalled_errors_do_not_end(self):
        self.check('signalCondition(simpleError("e"))\nsignalCondition(simpleMessage("m"))\n'
                   'x <- signalCondition(simpleWarning("w"))\ncat("end\\n")', ("out", "NULL\nNULL\nend\n"))

    def test_try_prints_to_stderr(self):
        self.check('try(stop("oops"))\nmessage("m")\nx <- try(log("a"), silent = TRUE)\nclass(x)',
                   ("err", 'Error in try(stop("oops")) : oops\n'), ("message", "m\n"), ("value", '[1] "try-error"'))

    def test_caught_errors(self):
        self.check('tryCatch(stop("a"), error = function(e) conditionMessage(e), finally = cat("f\\n"))',
                   ("out", "f\n"), ("value", '[1] "a"'))

    def test_global_calling_handlers(self):
        self.check('globalCallingHandlers(warning = function(w) {cat("mine\\n"); invokeRestart("muffleWarning")})\n'
                   'warning("w"); message("m")', ("out", "mine\n"), ("message", "m\n"))

    def test_handlers_removed(self):
        result = run("invisible(globalCallingHandlers(NULL))\nmessage('m')\nf <- function() stop('x')\nf()")
        self.assertEqual((result.code, result.only("error")["message"]), (1, "x"), result)
        self.assertIn("m\n", result.err)

    @needs("cli")
    def test_cli(self):
        self.check("cli::cli_text('one {1 + 1}')", ("message", "one 2\n"))

    def test_package_messages(self):
        result = run("packageStartupMessage('welcome')\nsuppressPackageStartupMessages(packageStartupMessage('no'))")
        self.assertEqual(result.order, [("message", "welcome\n")])

    def test_long_messages_are_cut(self):
        frame = run('message(strrep("é", 3e6))').only("message")
        self.assertLessEqual(len(frame["text"].encode()), MIB)
        self.assertIn("bytes left out", frame["text"])

    def test_frames_are_bounded_as_they_are_sent(self):
        frame = run('message(strrep("\\001\\"", 1e6))').only("message")  # escaped it is four times as long
        self.assertLessEqual(len(json.dumps(frame["text"])), MIB)
        self.assertGreater(len(json.dumps(frame["text"])), MIB // 2)
        self.assertIn("bytes left out", frame["text"])

    def test_forks_report_nothing(self):
        result = run("r <- parallel::mclapply(1:2, function(i) { message('m', i); i }, mc.cores = 2)\n"
                     "message('parent')\nr")
        self.assertEqual(result.code, 0, result)
        self.assertEqual([frame["type"] for frame in result.frames], ["message", "value"], result)
        self.assertEqual(sorted(result.err.split()), ["m1", "m2"])


class Errors(Case):
    def test_traceback(self):
        traceback = self.error("""\
            g <- function(y) {
              x <- y
              stop("boom ", x)
            }
            f <- function() g(1)

            cat("before\\n")
            f()
            cat("never\\n")""", "simpleError", "boom 1", out="before\n")
        self.assertEqual(traceback, "Error in g(1) (<code>#3): boom 1\nTraceback:\n 1. f() at <code>#8\n"
                                    " 2. g(1) at <code>#5")

    def test_at_top_level(self):
        self.assertEqual(self.error("1\nstop('x')", "simpleError", "x", out="[1] 1\n"), "Error (<code>#2): x")
        self.assertEqual(self.error("if (TRUE) {\n  y <- 1\n  stop('x')\n}", "simpleError", "x"), "Error (<code>#3): x")
        self.assertEqual(self.error("\nnone", "simpleError", "object 'none' not found"),
                         "Error (<code>#2): object 'none' not found")

    def test_of_c_code(self):
        traceback = self.error('f <- function(x) {\n  y <- x\n  y + "a"\n}\nf(1)', "simpleError",
                               "non-numeric argument to binary operator")
        self.assertEqual(traceback, 'Error in y + "a" (<code>#3): non-numeric argument to binary operator\n'
                                    "Traceback:\n 1. f(1) at <code>#5")

    def test_in_compiled_code(self):
        traceback = self.error('f <- function(x) {\n  for (i in 1:3) x <- x + i\n  stop("no")\n}\n'
                               'f <- compiler::cmpfun(f)\nf(1)',
                               "simpleError", "no")
        self.assertEqual(traceback, "Error in f(1) (<code>#3): no\nTraceback:\n 1. f(1) at <code>#6")

    def test_the_name_of_the_program(self):
        result = run("stop('x')", name="größe.R")
        self.assertEqual(result.only("error")["traceback"], "Error (größe.R#1): x")

    def test_a_sourced_file(self):
        workspace = tempfile.mkdtemp(dir=base)
        with open(os.path.join(workspace, "lib.R"), "w") as file:
            file.write("h <- function() {\n  stop('in file')\n}\n")
        traceback = self.error("\nsource('lib.R')\nh()", "simpleError", "in file", workspace=workspace)
        self.assertEqual(traceback, "Error in h() (lib.R#2): in file\nTraceback:\n 1. h() at <code>#3")

    def test_classes(self):
        self.error("stop(structure(class = c('mine', 'error', 'condition'), list(message = 'm', call = NULL)))", "mine",
                   "m")
        self.error("stop(structure(class = c('odd', 'condition'), list(message = 'm', call = NULL)))", "odd", "m")
        self.error("stopifnot('must be' = 1 > 2)", "simpleError", "must be")

    @needs("rlang")
    def test_rlang(self):
        traceback = self.error("f <- function() {\n  rlang::abort('rl', class = 'foo')\n}\nf()", "foo", "rl")
        self.assertEqual(traceback, "Error in f() (<code>#2): rl\nTraceback:\n 1. f() at <code>#4")
        self.check("rlang::inform('i')\nrlang::warn('w')\nx <- rlang::catch_cnd(rlang::abort('e'))",
                   ("message", "i\n"), ("warning", "w"))

    def test_on_exit_runs_after_the_report(self):
        self.check("f <- function() { on.exit(cat('bye\\n')); stop('x') }\nf()", ("error", "x"), ("out", "bye\n"),
                   status=1)

    def test_the_error_option(self):
        self.check("options(error = quote(cat('option\\n')))\nstop('x')\ncat('never\\n')",
                   ("error", "x"), ("out", "option\n"), status=1)
        self.check("options(error = function() quit(status = 9))\nstop('x')", ("error", "x"), status=9)

    def test_infinite_recursion(self):
        result = run("f <- function(x) f(x + 1)\ncat('a\\n')\nf(1)")
        self.assertEqual((result.code, result.out), (1, "a\n"), result)
        self.assertRegex(result.only("error")["message"], "infinite recursion|C stack usage")
        self.check("f <- function(x) f(x + 1)\ntryCatch(f(1), error = function(e) cat('caught\\n'))", ("out",
                                                                                                       "caught\n"))

    def test_deep_tracebacks_are_cut(self):
        traceback = self.error("f <- function(n) if (n == 0) stop('deep') else f(n - 1)\nf(500)", "simpleError", "deep")
        self.assertIn("[... 461 calls left out ...]", traceback)
        self.assertEqual(len(traceback.splitlines()), 2 + 40 + 1)

    def test_long_calls_are_cut(self):
        traceback = self.error("do.call(function(x) stop('big'), list(1:1e5 + 0.5))", "simpleError", "big")
        self.assertLess(len(traceback), 2000)

    def test_abort(self):
        result = run("cat('a\\n')\ninvokeRestart('abort')\ncat('never\\n')")
        self.assertEqual((result.code, result.out), (1, "a\n"), result)
        self.assertEqual(result.only("error")["message"], "evaluation was aborted")
        result = run("try(stop('old'), silent = TRUE)\ninvokeRestart('abort')")
        self.assertEqual(result.only("error")["message"], "evaluation was aborted")

    def test_parse_errors(self):
        message = "<code>:2:5: unexpected symbol\n1: x <- 1\n2: foo bar\n        ^"
        result = run("x <- 1\nfoo bar\n")
        error = result.only("error")
        self.assertEqual((result.code, result.out, result.err, error["name"]), (1, "", "", "parseError"))
        self.assertEqual(re.sub(" +\\^", " ^", error["message"]), re.sub(" +\\^", " ^", message))
        self.assertEqual(error["traceback"], "Error: " + error["message"])

    def test_nothing_runs_when_a_later_line_is_wrong(self):
        self.error("cat('never\\n')\nx <- (", "parseError", "<code>:3:0: unexpected end of input\n1: cat('never\\n')\n"
                                                            "2: x <- (\n  ^")

    def test_sources_that_are_no_text(self):
        self.error(b"x <- 1\0", "parseError", "source code cannot contain null bytes")
        self.error(b"x <- '\xff'", "parseError", "source code is not UTF-8")

    def test_windows_lines_and_a_byte_order_mark(self):
        self.check(b"\xef\xbb\xbfx <- 1\r\nx\r\n", ("value", "[1] 1"))

    def test_an_error_while_a_sink_is_open(self):
        self.check("sink('file.txt'); cat('hidden\\n'); stop('seen')", ("error", "seen"), status=1)


class TopLevel(Case):
    def test_frames_as_at_the_prompt(self):
        self.check("parent.frame()\nsys.call()\nsys.nframe()\nenvironment()\nf <- function() parent.frame()\nf()",
                   ("out", "<environment: R_GlobalEnv>\nNULL\n[1] 0\n<environment: R_GlobalEnv>\n"),
                   ("value", "<environment: R_GlobalEnv>"))

    def test_frames_in_functions(self):
        self.check("f <- function(n) if (n > 1) n * Recall(n - 1) else 1\nf(5)\ng <- function(...) sys.call()\n"
                   "g(1, b = 2)\n"
                   "local({ y <- 2; environmentName(parent.env(environment())) })\nh <- function() sys.nframe()\nh()",
                   ("out", '[1] 120\ng(1, b = 2)\n[1] "R_GlobalEnv"\n'), ("value", "[1] 1"))

    def test_the_same_as_r_itself(self):
        for code in (
                "x <- c(a = 1, b = 2)\nx\ninvisible(x)\n(x)\nif (TRUE) x else 0\nfor (i in 1:2) print(i)\nNULL",
                "f <- function(...) { g <- function() parent.frame(2); list(sys.call(), nargs(), sys.nframe(), g()) }\n"
                "f(1, k = 2)",
                "lm(dist ~ speed, cars)\nsummary(lm(dist ~ speed, cars))\nhead(mtcars)\nstr(iris)\n"
                "table(cars$speed > 10)",
                "setClass('A', representation(x = 'numeric'))\nnew('A', x = 1)\n"
                "setGeneric('area', function(s) standardGeneric('area'))",
                "B <- setRefClass('B', fields = list(n = 'numeric'))\nB$new(n = 3)\nB",
                "sapply(1:3, function(i) sys.nframe())\ndo.call('sys.call', list())\neval(quote(sys.nframe()))\n"
                "identical(local(parent.frame(6)), globalenv())",
                "tryCatch(stop('e'), error = print)\ntryCatch(f(), error = print)\n"
                "tryCatch(warning('w'), warning = print)",
                "matrix(1:6, 2)\narray(1:8, c(2, 2, 2))\nlist(1, list('a', b = NULL))\n"
                "as.POSIXct('2020-01-01', tz = 'UTC')\n1i\nquote(x + y)"):
            with self.subTest(code):
                plain = subprocess.run([binary, "--no-echo", "--no-restore", "--no-save"], input=code, encoding="utf-8",
                                       stdout=subprocess.PIPE, env={**environment, "R_PROFILE_USER": ""}, check=True)
                self.assertEqual(run(code + "\ninvisible()").out, plain.stdout)

    def test_a_long_program(self):
        self.json("x <- '" + "a" * 300000 + "'\n" + "y <- nchar(x)\n" * 2000 + "y", 300000)

    def test_no_frame_but_the_programs(self):
        self.check("f <- function() sys.calls()\nlength(f())\nlocal(sys.nframe())\n"
                   "g <- function() identical(sys.function(1), g)\ng()",
                   ("out", "[1] 1\n[1] 6\n"), ("value", "[1] TRUE"))
        self.check("print.foo <- function(x, ...) cat(length(sys.calls()))\nstructure(1, class = 'foo')", ("value",
                                                                                                           "2"))

    def test_jumps_out_of_nothing(self):
        self.error("return(1)", "simpleError", "no function to return from, jumping to top level")
        self.assertIn("no loop for break/next", run("repeat break\nbreak").only("error")["message"])

    def test_the_global_environment_is_empty(self):
        self.check("ls(all.names = TRUE)\nrm(list = ls(all.names = TRUE))\nx <- 1\nls()",
                   ("out", "character(0)\n"), ("value", '[1] "x"'))

    def test_the_search_path_is_that_of_r(self):
        names = ["stats", "graphics", "grDevices", "utils", "datasets", "methods"]
        self.json("search()", [".GlobalEnv", *("package:" + name for name in names), "Autoloads", "package:base"])

    def test_everything_detached_and_masked(self):
        self.check("""
            for (package in grep("package:(stats|graphics|utils|datasets)", search(), value = TRUE))
                detach(package, character.only = TRUE)
            print <- cat <- stop <- file <- paste0 <- list <- `if` <- `{` <- function(...) base::stop("masked")
            base::message("m")
            1L""", ("message", "m\n"), ("value", "[1] 1"))

    def test_not_interactive(self):
        self.json("c(interactive(), length(commandArgs(TRUE)) > 0)", [False, False])

    def test_children_that_are_r(self):
        self.json("""
            rscript <- file.path(R.home("bin"), "Rscript")
            system2(rscript, c("-e", shQuote("cat('child', interactive())")), stdout = TRUE)""", "child FALSE")

    def test_sources(self):
        workspace = tempfile.mkdtemp(dir=base)
        with open(os.path.join(workspace, "lib.R"), "w") as file:
            file.write("y <- 5\n6\nmessage('in')\n")
        self.check("source('lib.R')\nsource('lib.R', echo = FALSE, print.eval = TRUE)\ny",
                   ("message", "in\n"), ("out", "[1] 6\n"), ("message", "in\n"), ("value", "[1] 5"),
                   workspace=workspace)

    def test_files_of_the_workspace_are_not_read_at_start(self):
        workspace = tempfile.mkdtemp(dir=base)
        for name in ".Rprofile", ".Renviron":
            with open(os.path.join(workspace, name), "w") as file:
                file.write("cat('profile')\n" if name == ".Rprofile" else "R_DEFAULT_PACKAGES=NULL\nX=1\n")
        self.check("Sys.getenv('X')", ("value", '[1] ""'), workspace=workspace)

    def test_the_runner_is_out_of_reach(self):
        self.json("c(exists('send'), exists('on_condition'), exists('state'))", [False] * 3)

    def test_standard_functions_are_whole(self):
        self.check("Sys.which('sh') != ''\nsystem('echo s', intern = TRUE)\n"
                   "is.character(utils::osVersion) && nzchar(utils::osVersion)",
                   ("out", '  sh \nTRUE \n[1] "s"\n'), ("value", "[1] TRUE"))


class Ends(Case):
    def test_quit(self):
        nested = "f <- function() lapply(1, function(i) quit(status = 7))\nf()"
        for code, status in ("quit()", 0), ("q('no', 3)", 3), (nested, 7):
            with self.subTest(code):
                self.check("cat('a\\n')\n" + code + "\ncat('never\\n')", ("out", "a\n"), status=status)

    def test_quit_in_handlers(self):
        self.check("tryCatch(stop('x'), error = function(e) quit(status = 4))", status=4)
        self.check("try(stop('x'), silent = TRUE)\nquit(status = 5)", status=5)

    def test_last(self):
        self.check(".Last <- function() { cat('last\\n'); message('m') }\nquit(status = 3)",
                   ("out", "last\n"), ("message", "m\n"), status=3)
        self.check(".Last <- function() cat('last\\n')\n1", ("value", "[1] 1"), ("out", "last\n"))
        self.check(".Last <- function() cat('last\\n')\nquit(runLast = FALSE)")
        self.check(".Last <- function() stop('x')\ncat('a\\n')", ("out", "a\n"), ("error", "x"), status=1)

    def test_quit_sends_the_open_page(self):
        self.check("plot(1)\nquit(status = 2)", "display", status=2)

    def test_exit_finalizers_run(self):
        self.check("e <- new.env()\ninvisible(reg.finalizer(e, function(e) cat('final\\n'), onexit = TRUE))", ("out",
                                                                                                               "final\n"
                                                                                                               ""))

    def test_interrupts(self):
        started = Run("f <- function() {\n  on.exit(cat('cleaned\\n'))\n  cat('ready\\n')\n  Sys.sleep(30)\n}\nf()\n"
                      "cat('never\\n')").read_until("ready")
        os.kill(started.pid, signal.SIGINT)
        result = started.end()
        self.assertEqual((result.code, result.out), (130, "ready\ncleaned\n"), result)
        error = result.only("error")
        self.assertEqual((error["name"], error["message"]), ("interrupt", "interrupted"))
        self.assertIn(" 1. f() at <code>#6", error["traceback"])

    def test_a_caught_interrupt(self):
        started = Run("tryCatch({ cat('ready\\n'); Sys.sleep(30) }, interrupt = function(i) cat('caught\\n'))\n"
                      "1").read_until("ready")
        os.kill(started.pid, signal.SIGINT)
        result = started.end()
        self.assertEqual((result.code, result.order), (0, [("out", "ready\ncaught\n"), ("value", "[1] 1")]), result)

    def test_an_interrupted_loop_keeps_its_plot(self):
        started = Run("plot(1)\ncat('ready\\n')\nrepeat 1").read_until("ready")
        os.kill(started.pid, signal.SIGINT)
        result = started.end()
        self.assertEqual(result.code, 130, result)
        self.assertEqual([frame["type"] for frame in result.frames], ["error", "display"])

    def test_an_interrupt_among_many_frames(self):
        started = Run("repeat { cat('.'); message('again') }").read_until("." * 100)
        os.kill(started.pid, signal.SIGINT)
        result = started.end()
        self.assertEqual((result.code, result.frames[-1]["type"]), (130, "error"), result.frames[-3:])
        self.assertGreaterEqual(len(result.of("message")), 99)

    def test_an_interrupt_while_a_frame_is_sent(self):
        def interrupt(started):
            if len(started.frames) == 1:
                os.kill(started.pid, signal.SIGINT)
        for code in "repeat message('m')", "f <- function() for (i in 1:1e9) warning('w')\nf()":
            result = Run(code, on_frame=interrupt).end()
            self.assertEqual((result.code, result.frames[-1].get("name")), (130, "interrupt"), result)

    def test_an_interrupted_error_option(self):
        started = Run("options(error = quote({ cat('ready\\n'); Sys.sleep(30) }))\nstop('x')").read_until("ready")
        os.kill(started.pid, signal.SIGINT)
        self.assertEqual([frame["type"] for frame in started.end().frames], ["error"])

    def test_a_first_of_the_program_is_not_called(self):
        self.check(".First <- function() cat('first\\n')\nstop('x')", ("error", "x"), status=1)

    def test_quit_while_printing(self):
        self.check("print.foo <- function(x, ...) { cat('half\\n'); quit(status = 6) }\nstructure(1, class = 'foo')",
                   ("out", "half\n"), status=6)

    def test_no_whole_job(self):
        result = Run("1", cut=7).end()
        self.assertEqual((result.code, result.frames), (125, []), result)
        self.assertIn("the agent sent no whole job", result.err)

    def test_every_frame_asks(self):
        result = run("message('m'); warning('w'); plot(1); 1")
        self.assertEqual(len(result.headers), 4)
        self.assertTrue(all(header & ACKNOWLEDGE for header in result.headers))

    def test_nothing_is_left_behind(self):
        before = set(os.listdir(base))
        result = run("plot(1)\nx <- tempfile(); cat('a', file = x)")
        self.assertEqual(set(os.listdir(base)) - before, {os.path.basename(result.workspace)})
        self.assertEqual(os.listdir(result.workspace), [])


class Input(Case):
    def test_readline(self):
        self.check("x <- readline('name? ')\ny <- readline()\nc(x, y)", ("out", "name? "), ("value",
                                                                                            '[1] "Jörg" "b c" '),
                   stdin="Jörg\nb c\nrest\n")

    def test_readline_at_the_end(self):
        self.error("readline()\nreadline()", "simpleError", "end of standard input", out='[1] "a"\n', stdin="a\n")

    def test_readline_without_stdin(self):
        traceback = self.error("cat('a\\n')\nf <- function() readline('? ')\nf()", "simpleError", NO_STDIN, out="a\n? ")
        self.assertIn(" 1. f() at <code>#3", traceback)

    def test_readers_share_one_stdin(self):
        self.check("a <- readline(); b <- readLines(stdin(), 1); c <- scan(quiet = TRUE, nlines = 1); d <- readline()\n"
                   "list(a, b, c, d)[[4]]\nc",
                   ("out", '[1] "four"\n'), ("value", "[1] 1 2 3"), stdin="one\ntwo\n1 2 3\nfour\n")

    def test_files_named_stdin(self):
        for code in "readLines('stdin')", "readLines(file('stdin'))", "scan('stdin', '', sep = '\\n', quiet = TRUE)":
            with self.subTest(code):
                self.assertEqual(run(code, stdin="a\nb\n").only("value")["json"], ["a", "b"])

    def test_empty_readers_without_stdin(self):
        self.check("readLines('stdin')\nreadLines(stdin())\nscan(quiet = TRUE)",
                   ("out", "character(0)\ncharacter(0)\n"), ("value", "numeric(0)"))

    def test_stdin_is_no_program(self):
        self.check("x <- 1", stdin="cat('executed')\n")
        result = run("stop('x')", stdin="cat('executed')\n")
        self.assertEqual((result.code, result.out), (1, ""))

    def test_debuggers_without_stdin(self):
        for code in ("browser()", "f <- function() browser()\nf()", "debug(mean)", "debugonce(mean)"):
            with self.subTest(code):
                self.error(code, "simpleError", NO_DEBUGGER)
        self.check("browser(expr = FALSE)\n1", ("value", "[1] 1"))

    def test_the_debugger_reads_stdin(self):
        result = run("f <- function() { y <- 41; browser(); y }\nf()", stdin="y <- y + 1\nc\n")
        self.assertEqual((result.code, result.only("value")["json"]), (0, 42), result)
        self.assertIn("Called from: f()", result.out)

    def test_menu_is_an_error(self):
        self.error("menu(c('a', 'b'))", "simpleError", "menu() cannot be used non-interactively")


class Plots(Case):
    def test_a_page(self):
        result = self.check("plot(1:3)\nlines(3:1)\nlegend('top', 'a')\ntitle('t')", "display")
        self.assertEqual(png_size(result.frames[0]), (800, 600))

    def test_pages_in_order(self):
        result = run("plot(1)\ncat('a\\n')\nx <- hist(c(1, 2, 2))\ncat('b\\n')\nx <- barplot(1:3)\n7")
        self.assertEqual(result.order, [("out", "a\n"), "display", ("out", "b\n"), "display", "display", ("value",
                                                                                                          "[1] 7")])
        self.assertEqual(len({frame["data"]["image/png"] for frame in result.of("display")}), 3)

    def test_low_level_additions_change_the_page(self):
        plain, added = [run("plot(1:3)\n" + more).only("display")["data"]["image/png"] for more in ("",
                                                                                                    "abline(h = 2)")]
        self.assertNotEqual(plain, added)

    def test_many_figures_on_a_page(self):
        self.check("par(mfrow = c(1, 2))\nplot(1)\nplot(2)\nlayout(matrix(1:2, 1))\nplot(3)\nplot(4)", "display",
                   "display")

    def test_par_new_stays_on_the_page(self):
        self.check("plot(1)\npar(new = TRUE)\nplot(2)", "display")

    def test_a_device_without_a_page(self):
        self.check("old <- par(mar = c(1, 1, 1, 1))\ndev.new()\nx <- dev.off()")

    def test_closing(self):
        self.check("plot(1)\ninvisible(dev.off())\ncat('a\\n')\nplot(2)\ngraphics.off()\ncat('b\\n')",
                   "display", ("out", "a\n"), "display", ("out", "b\n"))

    def test_dev_new(self):
        result = self.check("dev.new(width = 4, height = 3)\nplot(1)", "display")
        self.assertEqual(png_size(result.frames[0]), (400, 300))
        self.check("dev.new()\nplot(1)\ndev.new()\nplot(2)", "display", "display")

    def test_size_options(self):
        result = self.check("options(repr.plot.width = 3, repr.plot.height = 2, repr.plot.res = 50)\nplot(1)",
                            "display")
        self.assertEqual(png_size(result.frames[0]), (150, 100))

    def test_devices_of_the_program(self):
        result = run("png('a.png'); plot(1); invisible(dev.off())\npdf('b.pdf'); plot(1); invisible(dev.off())\n"
                     "file.exists('a.png', 'b.pdf')")
        self.assertEqual(result.only("value")["json"], [True, True])
        self.assertEqual(sorted(os.listdir(result.workspace)), ["a.png", "b.pdf"])

    def test_both_kinds_of_devices(self):
        self.check("plot(1)\ninvisible(dev.off())\npng('a.png')\nplot(2)", "display")
        self.check("plot(1)\npng('a.png'); plot(2); x <- dev.off()\nlines(1:2)\nplot(3)", "display", "display")

    def test_dev_copy(self):
        result = run("plot(1:10)\ninvisible(dev.copy(png, 'copy.png'))\ninvisible(dev.off())\nr <- recordPlot()\n"
                     "file.size('copy.png') > 2000")
        self.assertEqual(result.of("value")[0]["json"], True)
        self.assertEqual(len(result.of("display")), 1)

    def test_an_error_keeps_the_page(self):
        self.check("plot(1)\nstop('x')", ("error", "x"), "display", status=1)
        self.check("f <- function() { old <- par(pch = 2); on.exit(par(old)); plot(1); stop('x') }\nf()", ("error",
                                                                                                           "x"),
                                                                                                           "display",
                                                                                                           status=1)

    def test_drawing_while_printing(self):
        self.check("print.foo <- function(x, ...) plot(unclass(x))\nstructure(1, class = 'foo')", "display")

    def test_the_last_value_follows_the_plots(self):
        self.check("x <- hist(c(1, 2))\nx$counts[1] * 0 + 1", "display", ("value", "[1] 1"))

    def test_images_too_large_are_told(self):
        result = run("options(repr.plot.width = 20, repr.plot.height = 20)\npar(mar = rep(0, 4))\n"
                     "image(matrix(runif(1200^2), 1200), col = rainbow(1e4), axes = FALSE)")
        self.assertEqual(result.code, 0)
        self.assertRegex(result.only("message")["text"], r"A plot of \d+\.\d MiB is too large to be shown")

    def test_a_page_comes_before_what_is_written_after_it(self):
        self.check("{ plot(1); plot(2); cat('a\\n') }", "display", ("out", "a\n"), "display")
        self.check("library(grid)\n{ grid.newpage(); grid.newpage(); cat('a\\n') }",
                   "display", ("out", "a\n"), "display")

    def test_grid(self):
        self.check("library(grid)\ngrid.newpage()\ngrid.rect()\ncat('a\\n')\ngrid.newpage()\ngrid.circle()\n"
                   "cat('b\\n')",
                   ("out", "a\n"), "display", ("out", "b\n"), "display")

    @needs("lattice")
    def test_lattice(self):
        self.check("library(lattice)\nxyplot(1:3 ~ 1:3)\ncat('a\\n')\nfor (i in 1:2) print(bwplot(1:3))",
                   ("out", "a\n"), "display", "display", "display")

    @needs("ggplot2")
    def test_ggplot2(self):
        result = self.check("""
            suppressPackageStartupMessages(library(ggplot2))
            p <- ggplot(mtcars, aes(mpg, wt)) + geom_point()
            for (i in 1:2) print(p)
            cat("a\\n")
            ggsave("p.png", p, width = 2, height = 2)
            p""", "display", ("out", "a\n"), "display", "display")
        self.assertEqual(os.listdir(result.workspace), ["p.png"])

    @needs("ggplot2")
    def test_a_ggplot_that_warns(self):
        result = run("library(ggplot2)\nggplot(data.frame(x = c(1, NA), y = 1:2), aes(x, y)) + geom_point()")
        self.assertEqual([frame["type"] for frame in result.frames], ["warning", "display"], result)
        self.assertIn("Removed 1 rows", result.frames[0]["text"])


if __name__ == "__main__":
    unittest.main()
