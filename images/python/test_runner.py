"""Tests of the Python runner, with the real interpreter and a real socketpair.

    /usr/bin/python3 -m unittest test_runner        (in this directory)

The interpreter that runs the tests is the one that runs the programs. Each test starts the runner as the agent does:
from byte code, with the documented command line, its reports on descriptor 3.
"""

import json
import os
import py_compile
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BOOTSTRAP = "import sys; sys.path.insert(0, %r); import runner; runner.main(3)"
FLAGS = ["-I", "-S", "-B", "-u", "-X", "utf8"]
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}
DEADLINE = 30
NO_STDIN = "no standard input: pass the text as `stdin`"
MIB = 1024 * 1024
ACKNOWLEDGE = 1 << 31


def setUpModule():
    global base, runner_directory
    base = tempfile.mkdtemp(prefix="runner-test-")
    runner_directory = os.path.join(base, "forge")
    os.mkdir(runner_directory)
    for name in "runner.py", "display.py":
        copy = shutil.copy(os.path.join(HERE, name), runner_directory)
        py_compile.compile(copy, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def tearDownModule():
    shutil.rmtree(base)


class Result:
    """How a run ended. `places` are the lengths of stdout and stderr when each acknowledged frame came."""

    def __init__(self, stdout, stderr, status, data, places=()):
        self.stdout, self.stderr, self.frames, self.places = stdout, stderr, [], list(places)
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        while data:
            size = struct.unpack(">I", data[:4])[0] & ~ACKNOWLEDGE
            assert size <= 4 * MIB and len(data) >= 4 + size, "a torn or too long frame"
            self.frames.append(json.loads(data[4:4 + size].decode("utf-8")))
            data = data[4 + size:]

    @property
    def out(self):
        return self.stdout.decode("utf-8")

    @property
    def err(self):
        return self.stderr.decode("utf-8")

    def only(self, kind):
        assert [frame["type"] for frame in self.frames] == [kind], (self.frames, self.stderr)
        return self.frames[0]

    def __repr__(self):
        return "code %r, signal %r, stdout %r, stderr %r, frames %r" % (
            self.code, self.signal, self.stdout[-2000:], self.stderr[-2000:], self.frames)


class Run:
    """A started program."""

    def __init__(self, code, stdin=None, name="<code>", workspace=None, cut=None, environment=()):
        code = code if isinstance(code, bytes) else textwrap.dedent(code).encode("utf-8")
        self.workspace = workspace or tempfile.mkdtemp(dir=base)
        self.stdin, pipes = stdin, [os.pipe(), os.pipe(), os.pipe()]
        self.ours, theirs = socket.socketpair()
        ends = [pipes[0][0], pipes[1][1], pipes[2][1], theirs.fileno()]
        if stdin is None:
            os.close(ends[0])
            ends[0] = os.open(os.devnull, os.O_RDONLY)
        # Numbers out of the way of 0 to 3 first, so that no dup2 meets an end that is needed later.
        high = [os.dup(end) for end in ends]
        actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(high)]
        here = os.getcwd()
        os.chdir(self.workspace)
        try:
            environment = dict(ENVIRONMENT, HOME=self.workspace, TMPDIR=base, **dict(environment))
            self.pid = os.posix_spawn(sys.executable, [sys.executable, *FLAGS, "-c", BOOTSTRAP % runner_directory],
                                      environment, file_actions=actions)
        finally:
            os.chdir(here)
        for end in high + ends[:3]:
            os.close(end)
        theirs.close()
        self.feed, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
        name = name.encode()
        job = struct.pack(">BI", stdin is not None, len(name)) + name + struct.pack(">I", len(code)) + code
        self.parsed, self.places = 0, []
        self.ours.sendall(job[:cut])
        if cut is not None:
            self.ours.shutdown(socket.SHUT_WR)

    def read_until(self, text):
        """Reads stdout up to a text: the program has come so far."""
        seen = b""
        while text not in seen:
            data = os.read(self.stdout, 65536)
            assert data, (seen, text)
            seen += data
        return seen

    def acknowledge(self, streams):
        """Does as the agent: takes the output before a frame that asks for it, then answers."""
        data = streams[self.ours.fileno()]
        while len(data) - self.parsed >= 4:
            header = struct.unpack(">I", data[self.parsed:self.parsed + 4])[0]
            end = self.parsed + 4 + (header & ~ACKNOWLEDGE)
            if len(data) < end:
                break
            self.parsed = end
            if header & ACKNOWLEDGE:
                for stream in self.stdout, self.stderr:
                    while select.select([stream], [], [], 0)[0]:
                        more = os.read(stream, 65536)
                        streams[stream] += more
                        if not more:
                            break
                self.places.append((len(streams[self.stdout]), len(streams[self.stderr])))
                try:
                    self.ours.send(b"\6")
                except BrokenPipeError:
                    pass

    def end(self):
        streams = {self.stdout: b"", self.stderr: b"", self.ours.fileno(): b""}
        feed = memoryview((self.stdin or "").encode())
        deadline, status = time.monotonic() + DEADLINE, None
        selector = subprocess._PopenSelector()
        for stream in streams:
            selector.register(stream, 1)
        if feed:
            selector.register(self.feed, 2)
        else:
            os.close(self.feed)
        waiting = set(streams)
        while waiting:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the program does not end")
            for key, _ in selector.select(1):
                if key.fd == self.feed and feed:
                    try:
                        feed = feed[os.write(self.feed, feed[:4096]):]
                    except BrokenPipeError:
                        feed = feed[:0]
                    if not feed:
                        selector.unregister(self.feed)
                        os.close(self.feed)
                    continue
                try:
                    data = os.read(key.fd, 65536)
                except ConnectionResetError:
                    data = b""
                streams[key.fd] += data
                if key.fd == self.ours.fileno():
                    self.acknowledge(streams)
                if not data:
                    selector.unregister(key.fd)
                    waiting.discard(key.fd)
        selector.close()
        _, status = os.waitpid(self.pid, 0)
        result = Result(streams[self.stdout], streams[self.stderr], status, streams[self.ours.fileno()],
                        self.places)
        os.close(self.stdout)
        os.close(self.stderr)
        self.ours.close()
        return result


def run(code, stdin=None, name="<code>", workspace=None, environment=()):
    return Run(code, stdin, name, workspace, environment=environment).end()


class Case(unittest.TestCase):
    maxDiff = None

    def check(self, code, out="", err="", code_=0, **options):
        """Runs a program that reports nothing."""
        result = run(code, **options)
        self.assertEqual((result.out, result.err, result.code, result.frames), (out, err, code_, []))

    def value(self, code, **options):
        result = run(code, **options)
        self.assertEqual((result.code, result.err), (0, ""), result)
        return result.only("value")

    def error(self, code, **options):
        result = run(code, **options)
        self.assertEqual((result.code, result.err), (1, ""), result)
        return result.only("error")


class Values(Case):
    def test_last_expression(self):
        for code, value in [("6 * 7", 42), ("x = 2\nx + 1", 3), ("'a'; 'b'", "b"), ("(\n 1,\n 2\n)\n# end\n", [1, 2]),
                            ("def f(): return 5\nf()", 5), ("\n\n'only a docstring'", "only a docstring"),
                            ("x = [i for i in range(3)]\nx", [0, 1, 2]), ("lambda_ = 1; lambda_ + 1 # ; comment", 2),
                            ("'é;' # ;", "é;"), ("x = 1\r\nx + 1\r\n", 2), ("if 1:\n  pass\n\n5\n\n\n", 5)]:
            with self.subTest(code):
                self.assertEqual(self.value(code)["json"], value)

    def test_no_value(self):
        for code in ["", "\n", "# nothing", "pass", "None", "x = 5", "5\nx = 6", "if True:\n    5", "print", "6 * 7;",
                     "(6 * 7) ; # six by seven", "'é' ;", "(\n1\n);\n#\n", "import sys\n", "for x in 1, 2:\n  x",
                     "del __name__"]:
            with self.subTest(code):
                result = run(code if code != "print" else "print()")
                self.assertEqual((result.frames, result.code, result.err), ([], 0, ""))

    def test_repr_and_json(self):
        frame = self.value("{'a': [1, 2.5, None, True], 'b': {'c': 'x\"\\\\\\n\\t\\x00é😀'}}")
        self.assertEqual(frame["json"], {"a": [1, 2.5, None, True], "b": {"c": 'x"\\\n\t\x00é😀'}})
        self.assertEqual(frame["repr"], repr(frame["json"]))
        self.assertEqual(self.value("'x\\x7f\\x80\\u2028'")["json"], "x\x7f\x80\u2028")
        self.assertEqual(self.value("'multi\\nline'")["repr"], "'multi\\nline'")

    def test_exact_json(self):
        for code, value in [("2**63", 2**63), ("2**64 - 1", 2**64 - 1), ("-2**63", -2**63), ("1e300", 1e300),
                            ("-0.0", -0.0),
                            ("False", False), ("0", 0), ("[]", []), ("{}", {}), ("()", []), ("''", ""),
                            ("1e16", 1e16)]:
            with self.subTest(code):
                value_ = self.value(code)["json"]
                self.assertEqual((repr(value_), type(value_)), (repr(value), type(value)))

    def test_no_json_where_it_would_lose_something(self):
        for code in ["2**64", "-2**63 - 1", "float('nan')", "[1, float('inf')]", "-float('inf')", "1j", "b'x'",
                     "{1: 2}", "{1, 2}",
                     "{(1,): 2}", "'\\ud800'", "['a', {'\\udc00': 1}]", "object()", "...", "range(3)", "int",
                     "[1, [2, object()]]"]:
            with self.subTest(code):
                frame = self.value(code)
                self.assertNotIn("json", frame)
                self.assertIn("repr", frame)
        self.assertEqual(self.value("'\\ud800'")["repr"], "'\\ud800'")

    def test_subclasses_are_not_json(self):
        for base_, text in [("dict", "a=1"), ("list", "[1]"), ("str", "'x'"), ("int", "5"), ("float", "2.5"),
                            ("tuple", "[1]")]:
            with self.subTest(base_):
                frame = self.value("class X(%s):\n    def __repr__(self): return 'mine'\nX(%s)" % (base_, text))
                self.assertEqual(frame, {"type": "value", "repr": "mine"})
        self.assertNotIn("json", self.value("import collections; collections.OrderedDict(a=1)"))
        self.assertNotIn("json", self.value("import enum\nclass E(enum.IntEnum):\n    A = 1\nE.A"))

    def test_depth_and_cycles(self):
        self.assertIn("json", self.value("x = []\nfor _ in range(63): x = [x]\nx"))
        self.assertNotIn("json", self.value("x = []\nfor _ in range(64): x = [x]\nx"))
        self.assertIn("json", self.value("x = {}\nfor _ in range(63): x = {'a': x}\nx"))
        frame = self.value("x = [1]; x.append(x); x")
        self.assertEqual(frame, {"type": "value", "repr": "[1, [...]]"})
        self.assertEqual(self.value("d = {}; d['d'] = d; d"), {"type": "value", "repr": "{'d': {...}}"})

    def test_size(self):
        frame = self.value("'x' * (1024 * 1024 - 2)")
        self.assertEqual(len(frame["json"]), MIB - 2)
        frame = self.value("'x' * (1024 * 1024 - 1)")
        self.assertNotIn("json", frame)
        frame = self.value("list(range(1000000))")
        self.assertNotIn("json", frame)
        self.assertTrue(frame["repr"].startswith("[0, 1, 2") and frame["repr"].endswith("999999]"))
        self.assertRegex(frame["repr"], r"\n\[\.\.\. \d+ characters left out \.\.\.\]\n")
        self.assertTrue(MIB - 100 < len(json.dumps(frame["repr"])) <= MIB)
        frame = self.value("class X:\n    def __repr__(self): return '\\x01' * 2000000\nX()")
        self.assertTrue(MIB - 1000 < len(json.dumps(frame["repr"])) <= MIB)
        frame = self.value("class X:\n    def __repr__(self): return '😀' * 2000000\nX()")
        self.assertTrue(MIB - 1000 < len(frame["repr"].encode()) <= MIB)

    def test_shared_parts_do_not_explode(self):
        frame = self.value("class L(list):\n    pass\nx = [1]\nfor _ in range(50): x = [x, x]\n"
                           "list.__repr__ and (x, L([1]))[0] and 'made'")
        self.assertEqual(frame["json"], "made")
        code = "x = [1]\nfor _ in range(18): x = [x, x]\nx"
        self.assertNotIn("json", self.value(code))

    def test_raising_repr(self):
        template = "class X:\n    def __repr__(self): %s\nX()"
        error = self.error(template % "raise ValueError('no')")
        self.assertEqual(error, {"type": "error", "name": "ValueError", "message": "no", "traceback":
                                 'Traceback (most recent call last):\n  File "<code>", line 2, in __repr__\n'
                                 "    def __repr__(self): raise ValueError('no')\n"
                                 + (" " * 24 + "^" * 22 + "\n") * (sys.version_info >= (3, 11)) + "ValueError: no\n"})
        self.assertEqual(self.error(template % "return 5")["message"], "__repr__ returned non-string (type int)")
        self.assertEqual(self.error(template % "return repr(self)")["name"], "RecursionError")
        self.assertEqual(self.error((template + "; x = [1, {'a': X()}]\nx") % "return self.missing")["name"],
                         "AttributeError")
        nasty = "class E(Exception):\n    def __str__(self): raise self\n"
        self.assertEqual(self.error(nasty + template % "raise E()")["message"], "<exception str() failed>")
        if hasattr(sys, "get_int_max_str_digits"):
            self.assertIn("Exceeds", self.error("10 ** 5000")["message"])

    def test_repr_that_ends_the_program(self):
        template = "class X:\n    def __repr__(self): %s\nX()"
        result = run(template % "raise SystemExit(4)")
        self.assertEqual((result.code, result.frames), (4, []))
        result = run(template % "raise KeyboardInterrupt")
        self.assertEqual((result.code, result.only("error")["name"]), (130, "KeyboardInterrupt"))
        self.assertIn("in __repr__", result.frames[0]["traceback"])

    def test_repr_that_prints_and_surrogates(self):
        result = run("class X:\n    def __repr__(self): print('printed'); return 'a\\ud800b'\nX()")
        self.assertEqual((result.out, result.only("value")["repr"]), ("printed\n", "a\\ud800b"))
        frame = self.value("class S(str):\n    def encode(self, *a): return b'lie'\n    def __len__(self): return 0\n"
                           "class X:\n    def __repr__(self): return S('truth')\nX()")
        self.assertEqual(frame["repr"], "truth")
        frame = self.value("class S(str):\n    def __len__(self): return 0\n    __getitem__ = str\n"
                           "class X:\n    def __repr__(self): return S('x' * 5000000)\nX()")
        self.assertTrue(MIB - 1000 < len(frame["repr"]) <= MIB)


class Tracebacks(Case):
    def plain(self, code):
        """What the interpreter itself prints for a file of the same text."""
        path = os.path.join(tempfile.mkdtemp(dir=base), "prog.py")
        with open(path, "wb") as file:
            file.write(code if isinstance(code, bytes) else code.encode("utf-8"))
        done = subprocess.run([sys.executable, "-I", "-X", "utf8", path], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 1)
        return done.stderr.decode("utf-8").replace(path, "<code>")

    def same(self, code):
        code = textwrap.dedent(code)
        def depth(text):  # the runner's frames count towards the recursion limit
            return re.sub("repeated .* more times", "repeated n more times", text)

        expected = depth(self.plain(code))
        for name in "<code>", "prog.py":
            frame = self.error(code, name=name)
            self.assertEqual(depth(frame["traceback"]).replace('"%s"' % name, '"<code>"'), expected)
        return frame

    def test_exact_text(self):
        frame = self.error("1/0")
        self.assertEqual((frame["name"], frame["message"]), ("ZeroDivisionError", "division by zero"))
        carets = "    ~^~\n" if sys.version_info >= (3, 11) else ""
        self.assertEqual(frame["traceback"], 'Traceback (most recent call last):\n'
                                             '  File "<code>", line 1, in <module>\n    1/0\n'
                         + carets + "ZeroDivisionError: division by zero\n")

    def test_same_as_python(self):
        for code in [
            "1/0",
            "x = 5\n\n\ndef f(a):\n    return g(a) + [\n        1]\ndef g(b): return {}[b]\nf(2)\n",
            "class Own(Exception): pass\nraise Own('a\\nb')",
            "raise Exception",
            "import json\njson.loads('{')",
            "def f(n): return f(n + 1)\nf(0)",
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            "open('/nowhere/at all')",
            "x = {'é': [1, 'ü']}; x['é'][0]()",
            "exec('1/0')",
            "exec(compile('\\n\\n1/0', 'other.py', 'exec'))",
            "eval('1 +')",
            "import nowhere_to_be_found",
            "prin(5)",
            "[].appendd",
            "raise GeneratorExit",
            "assert 1 == 2, 'no'",
            "import re; re.compile('(')",
            "e = ValueError(1)\nif hasattr(e, 'add_note'): e.add_note('look\\nhere')\nraise e",
            "# -*- coding: latin-1 -*-\nprint(1)\n1 + 'x'",
        ]:
            with self.subTest(code):
                self.same(code)

    def test_chains(self):
        for code in [
            "try:\n    1/0\nexcept Exception:\n    {}['k']",
            "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('v') from e",
            "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('v') from None",
            "def f():\n    try:\n        1/0\n    finally:\n        g()\ndef g():\n    try: [][1]\n"
            "    finally: {}[0]\nf()",
        ]:
            with self.subTest(code):
                self.same(code)

    @unittest.skipIf(sys.version_info < (3, 11), "exception groups came with Python 3.11")
    def test_groups(self):
        self.same("""
            def f(x):
                def g(): return x / 0
                g()
            try: f(1)
            except Exception as e:
                raise ExceptionGroup('all', [e, ValueError(3), ExceptionGroup('in', [KeyError('k')])])
            """)

    def test_syntax_errors(self):
        # 3.9 counts the lines of files in another way.
        unfinished = ["x = (1 +\n", "x = '''\nabc\n"] if sys.version_info >= (3, 10) else []
        for code in unfinished + ["def f(:\n  pass", "if 1:\nx", "if 1:\n        x\n    y", "if 1:\n\tx\n        y",
                                  "x = 'abc", "1 = x",
                     "a b", "print 'x'", "x = = 1", "x = 5 $ 3", "for", "f(a for a in b, c)", "x = 1\n  y = 1",
                     "(" * 300]:
            with self.subTest(code[:20]):
                frame = self.same(code)
                self.assertIn("line ", frame["message"])

    def test_errors_of_the_compiler(self):
        for code in ["x = 1\nreturn 5", "def f():\n    x = 1\n    global x", "break", "from __future__ import braces",
                     "x = 1\nfrom __future__ import annotations", "def f():\n    nonlocal y", "yield 1",
                     "'\\N{no such name}'"]:
            with self.subTest(code):
                self.same(code)

    def test_caret_after_other_letters(self):
        self.assertIn("    é = = 1\n        ^\n", self.error("é = = 1")["traceback"])

    def test_own_syntax_error_names(self):
        for code, name in [("if 1:\nx", "IndentationError"), (
            "if 1:\n\tx\n        y", "TabError"), ("1 +", "SyntaxError")]:
            self.assertEqual(self.error(code)["name"], name)

    def test_null_bytes_and_bad_utf8(self):
        frame = self.error(b"x = 1\n\ny = '\0'\n")
        self.assertEqual((frame["name"], frame["message"]),
                         ("SyntaxError", "source code cannot contain null bytes (<code>, line 3)"))
        self.assertEqual(frame["traceback"], '  File "<code>", line 3\n'
                                             'SyntaxError: source code cannot contain null bytes\n')
        frame = self.error(b"x = 1\ny = '\xff'")
        self.assertEqual(frame["name"], "SyntaxError")
        self.assertRegex(frame["traceback"],
                         r"line 2\n.*'utf-8' codec can't decode byte 0xff in position 11: invalid start byte")

    def test_byte_order_mark_and_coding_comment(self):
        self.assertEqual(self.value(b"\xef\xbb\xbf'\xc3\xa9'")["json"], "é")
        self.assertEqual(self.value("# coding: latin-1\n'é'")["json"], "é")
        self.assertIn("    'é' + 1\n", self.error("# coding: latin-1\n'é' + 1")["traceback"])

    def test_too_deep(self):
        frame = self.error("x = " + "-" * 100000 + "1")
        self.assertIn(frame["name"], ("RecursionError", "MemoryError", "SyntaxError"))
        self.assertNotIn("runner", frame["traceback"])

    def test_deeper_than_a_tree_can_be(self):
        result = run("x = %s\nprint(x)" % "+".join(["1"] * 1500))
        self.assertEqual((result.out, result.frames), ("1500\n", []))

    def test_bounds(self):
        frame = self.error("raise ValueError('a' * 1000000 + 'z')")
        self.assertLessEqual(len(json.dumps(frame["message"])), 64 * 1024)
        self.assertLessEqual(len(json.dumps(frame["traceback"])), 256 * 1024)
        self.assertTrue(frame["message"].startswith("aaa") and frame["message"].endswith("az"))
        self.assertIn("characters left out", frame["message"])
        self.assertTrue(frame["traceback"].startswith("Traceback") and frame["traceback"].endswith("az\n"))
        frame = self.error("def f(n): return %s g(n)\ndef g(n): return f(n)\n"
                           "import sys; sys.setrecursionlimit(1500); f(0)" % ("0 or " * 60))
        self.assertLessEqual(len(json.dumps(frame["traceback"])), 256 * 1024)

    def test_surrogates_in_message(self):
        frame = self.error("raise ValueError('\\ud800 \\udcff')")
        self.assertEqual(frame["message"], "\\ud800 \\udcff")
        self.assertIn("ValueError: \\ud800 \\udcff\n", frame["traceback"])

    def test_own_frames_are_not_seen(self):
        code = """
            try:
                input()
            except EOFError as e:
                first = e
            try:
                raise KeyError from first
            except KeyError as e:
                raise ValueError from e
            """
        traceback = self.error(code)["traceback"]
        self.assertNotIn("runner", traceback)
        self.assertEqual(traceback.count("File "), 3)

    def test_exception_that_resists(self):
        result = run("""
            class Meta(type):
                __name__ = property(lambda self: 1/0)
            class E(Exception, metaclass=Meta):
                def __setattr__(self, *a): raise TypeError
                def __getattribute__(self, name): raise TypeError(name)
                def __str__(self): raise SystemExit(5)
            raise E()
            """)
        frame = result.only("error")  # stderr may have what the interpreter says when it cannot print the exception
        self.assertEqual((frame["name"], frame["message"]), ("E", "<exception str() failed>"))
        self.assertIn('File "<code>", line 8, in <module>\n', frame["traceback"])
        self.assertRegex(frame["traceback"], r"\n(__main__\.)?E: <exception str\(\) failed>\n")
        self.assertNotIn("runner", frame["traceback"])

    def test_endless_context(self):
        frame = self.error("a = ValueError(1); b = KeyError(2)\na.__context__ = b; b.__context__ = a\nraise a")
        self.assertIn("ValueError: 1", frame["traceback"])
        frame = self.error("e = None\nfor i in range(5000):\n    n = ValueError(i); n.__cause__ = e; e = n\nraise e")
        self.assertEqual(frame["name"], "ValueError")
        self.assertTrue(frame["traceback"].endswith("ValueError: 4999\n"))

    def test_threads_write_to_the_real_stderr_meanwhile(self):
        result = run("""
            import sys, threading, time
            stop = threading.Event()
            def write():
                while not stop.is_set():
                    sys.stderr.write('t')
            threading.Thread(target=write, daemon=True).start()
            class E(Exception):
                def __str__(self):
                    time.sleep(0.02); stop.set(); return 'x'
            raise E
            """)
        self.assertEqual(set(result.err), {"t"})  # nothing of the traceback
        self.assertNotIn("tt", result.only("error")["traceback"])

    def test_source_for_the_program_itself(self):
        result = run("""
            import inspect, sys, traceback, warnings
            def f():
                1/0
            try:
                f()
            except Exception:
                traceback.print_exc(file=sys.stdout)
            print(inspect.getsource(f))
            warnings.warn('look')
            """)
        self.assertEqual(result.out.count("    1/0\n"), 2)
        self.assertEqual(result.err, "<code>:11: UserWarning: look\n  warnings.warn('look')\n".replace("11", "10"))

    def test_file_of_the_same_name_as_a_module(self):
        workspace = tempfile.mkdtemp(dir=base)
        for name in "traceback", "linecache", "token", "io", "site", "sitecustomize", "runner", "codeop":
            with open(os.path.join(workspace, name + ".py"), "w") as file:
                file.write("print('taken')")
        self.assertIn("    1/0\n", self.error("1/0", workspace=workspace)["traceback"])
        result = run("try:\n    import no_such_module\nexcept ImportError:\n    pass\n6", workspace=workspace)
        self.assertEqual((result.out, result.only("value")["json"]), ("", 6))

    def test_excepthook_of_the_program(self):
        result = run("import sys\nsys.excepthook = lambda *a: print(a[0].__name__)\n1/0")
        self.assertEqual((result.out, result.code, result.only("error")["name"]), (
            "ZeroDivisionError\n", 1, "ZeroDivisionError"))
        result = run("import sys\ndef hook(*a): raise ValueError('mine')\nsys.excepthook = hook\n1/0")
        self.assertIn("Error in sys.excepthook:\n", result.err)
        self.assertIn("ValueError: mine", result.err)
        self.assertEqual(run("import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1/0").code, 9)


class Exits(Case):
    def test_sys_exit(self):
        for argument, code, err in [("", 0, ""), ("None", 0, ""), ("0", 0, ""), ("3", 3, ""), ("256 + 7", 7, ""),
                                    ("-1", 255, ""), ("True", 1, ""),
                                    ("'text'", 1, "text\n"), ("(1, 2)", 1, "(1, 2)\n"), ("10 ** 30", 255, ""),
                                    ("2.5", 1, "2.5\n")]:
            with self.subTest(argument):
                self.check("import sys; sys.exit(%s)" % argument, err=err, code_=code)

    def test_builtins_of_site(self):
        self.check("exit(3)", code_=3)
        self.check("quit()")
        self.check("raise SystemExit", code_=0)
        self.check("print(exit); print(repr(quit))", out="Use exit() or Ctrl-D (i.e. EOF) to exit\n"
                                                         "Use quit() or Ctrl-D (i.e. EOF) to exit\n")
        result = run("print(copyright); print(credits); license; help(len)")
        self.assertIn("Stichting Mathematisch Centrum", result.out)
        self.assertIn("Return the number of items in a container.", result.out)
        self.assertEqual((result.code, result.err, result.frames), (0, "", []))
        self.assertEqual(run("help()").code, 0)

    def test_exit_in_function_and_chain(self):
        self.check("try:\n    1/0\nexcept Exception:\n    raise SystemExit(5)", code_=5)
        self.check("import sys\nclass E(SystemExit): pass\nraise E(6)", code_=6)

    def test_interrupt(self):
        run_ = Run("import time\n\nprint('on'); time.sleep(60)")
        run_.read_until(b"on")
        os.kill(run_.pid, signal.SIGINT)
        result = run_.end()
        frame = result.only("error")
        self.assertEqual((result.code, frame["name"], result.err), (130, "KeyboardInterrupt", ""))
        self.assertIn('  File "<code>", line 3, in <module>\n    print(\'on\'); time.sleep(60)\n', frame["traceback"])
        self.assertEqual(run("raise KeyboardInterrupt").code, 130)

    def test_interrupt_of_a_loop(self):
        run_ = Run("print('on')\nwhile True: pass")
        run_.read_until(b"on")
        os.kill(run_.pid, signal.SIGINT)
        result = run_.end()
        self.assertEqual((result.code, result.only("error")["name"]), (130, "KeyboardInterrupt"))

    def test_caught_interrupt(self):
        run_ = Run("import time\ntry:\n    print('on')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n"
                   "    print('caught')\n7")
        run_.read_until(b"on")
        os.kill(run_.pid, signal.SIGINT)
        result = run_.end()
        self.assertEqual((result.code, result.only("value")["json"]), (0, 7))
        self.assertTrue(result.out.endswith("caught\n"))

    def test_interrupts_never_tear_a_frame(self):
        run_ = Run("print('on')\n'x' * 1000000")
        run_.read_until(b"on")
        try:
            for _ in range(200):
                os.kill(run_.pid, signal.SIGINT)
        except ProcessLookupError:
            pass
        result = run_.end()
        self.assertLessEqual(len(result.frames), 1, result.frames)
        self.assertIn(result.code, (0, 1, 130))

    def test_os_exit_crash_and_kill_lose_no_output(self):
        for end, code, signal_ in [("os._exit(7)", 7, None), ("ctypes.string_at(0)", None, signal.SIGSEGV),
                                   ("os.kill(os.getpid(), 9)", None, signal.SIGKILL),
                                   ("os.abort()", None, signal.SIGABRT)]:
            with self.subTest(end):
                result = run("import os, sys\n%s\nprint('out', end='')\nsys.stdout.buffer.write(b'\\xff')\n"
                             "print('err', end='', file=sys.stderr)\n%s"
                             % ("import ctypes" if "ctypes" in end else "", end))
                self.assertEqual((result.stdout, result.stderr, result.code, result.signal),
                                 (b"out\xff", b"err", code, signal_))
                self.assertEqual(result.frames, [])

    def test_exec_replaces_the_runner(self):
        result = run("import os, sys\nprint('before')\nos.execv('/bin/sh', ['sh', '-c', 'echo after; exit 4'])")
        self.assertEqual((result.code, result.frames), (4, []))
        self.assertEqual(result.out, "before\nafter\n")


class Streams(Case):
    def test_separate_and_in_order(self):
        self.check("import sys\nprint('a', end=' ')\nsys.stdout.buffer.write(b'b ');\nprint('c')\n"
                   "print('e', file=sys.stderr)",
                   out="a b c\n", err="e\n")
        result = run("import sys\nfor i in range(2000):\n    print(i, end=',')\n"
                     "    sys.stdout.buffer.write(b'%d;' % i)\n    sys.stdout.write('é')")
        self.assertEqual(result.out, "".join("%d,%d;é" % (i, i) for i in range(2000)))

    def test_big_output(self):
        result = run("import sys\nprint('x' * 3000000); print('y' * 3000000, file=sys.stderr)\n"
                     "sys.stdout.buffer.write(b'z' * 3000000);")
        self.assertEqual(result.stdout, b"x" * 3000000 + b"\n" + b"z" * 3000000)
        self.assertEqual(result.stderr, b"y" * 3000000 + b"\n")

    def test_any_text_can_be_printed(self):
        self.check("import sys\nprint('é \\ud800 \\udcff 😀')\nprint('\\udfff', file=sys.stderr)",
                   out="é \\ud800 \\udcff 😀\n", err="\\udfff\n")
        self.assertEqual(run("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe');").stdout, b"\xff\xfe")

    def test_streamed(self):
        run_ = Run("import sys, time\nprint('.', end='')\nsys.stdin.readline()\nprint('!')", stdin="\n")
        self.assertEqual(run_.read_until(b"."), b".")
        self.assertEqual(run_.end().out, "!\n")

    def test_closed_streams(self):
        result = run("import sys\nprint('a')\nsys.stdout.close()\nsys.stderr.close()\n5")
        self.assertEqual((result.out, result.code, result.only("value")["json"]), ("a\n", 0, 5))
        result = run("import sys\nsys.stdout.close()\nprint(1)")
        self.assertEqual((result.code, result.only("error")["message"]), (1, "I/O operation on closed file."))
        result = run("import os\nos.close(1)\nos.close(2)\n5")
        self.assertEqual((result.code, result.only("value")["json"]), (0, 5))
        self.assertEqual(run("import os\nos.close(1)\nprint(1)").only("error")["name"], "OSError")
        result = run("import sys\nsys.stdout = sys.stderr = sys.stdin = None\nprint(1)\n1/0")
        self.assertEqual((result.code, result.only("error")["name"]), (1, "ZeroDivisionError"))
        result = run("import sys\ndel sys.stdout, sys.stderr, sys.stdin\n1/0")
        self.assertEqual((result.code, result.only("error")["name"]), (1, "ZeroDivisionError"))

    def test_everything_closed(self):
        for last, code in [("6", 0), ("import sys; sys.exit(3)", 3), ("1/0", 1)]:
            with self.subTest(last):
                result = run("import os\nprint('a')\nos.closerange(0, 100)\n" + last)
                self.assertEqual((result.out, result.code, result.frames), ("a\n", code, []))

    def test_descriptor_taken_by_the_program(self):
        workspace = tempfile.mkdtemp(dir=base)
        result = run("import os\nos.closerange(3, 100)\nfd = os.open('mine', os.O_CREAT | os.O_WRONLY)\n"
                     "assert fd == 3\n"
                     "os.write(fd, b'text')\nif os.fork() == 0: os._exit(0)\nos.wait()\nos.write(fd, b'.')\n6",
                     workspace=workspace)
        self.assertEqual((result.code, result.frames), (0, []))
        with open(os.path.join(workspace, "mine")) as file:
            self.assertEqual(file.read(), "text.")

    def test_streams_of_the_program_are_flushed(self):
        self.check("import io, sys\nsys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w')), 'utf-8')\n"
                   "print('kept')", out="kept\n")
        self.check("import os\nf = os.fdopen(1, 'w')\nf.write('kept');", out="kept")
        result = run("import sys\nclass S:\n    def write(self, s): pass\n"
                     "    def flush(self): raise OSError('full')\nsys.stdout = S()")
        self.assertEqual(result.code, 120)
        self.assertIn("OSError: full", result.err)
        self.assertEqual(run("import sys\nclass S:\n    def __repr__(self): 1/0\nsys.stdout = S()").code, 120)

    def test_c_streams_are_flushed(self):
        self.check("import ctypes\nctypes.CDLL(None).printf(b'from C');", out="from C")

    def test_descriptors_of_children(self):
        result = run(
            "import subprocess\n"
            "print(subprocess.check_output(['ls', '-l', '/proc/self/fd'], close_fds=False, text=True))")
        self.assertIn("pipe:", result.out)
        self.assertNotIn("socket:", result.out)
        self.check("import os\nprint(os.get_inheritable(3))", out="False\n")


class Stdin(Case):
    def test_given(self):
        self.check("print(input('name? ')); import sys; print(repr(sys.stdin.read()))",
                   out="name? Ann\n'rest\\né'\n", stdin="Ann\nrest\né")
        self.check("import sys\nprint([line for line in sys.stdin])", out="['a\\n', 'b']\n", stdin="a\nb")
        self.check("import sys\nprint(len(sys.stdin.buffer.read()))", out="200000\n", stdin="x" * 200000)

    def test_given_and_used_up(self):
        for stdin in "one", "":
            frame = run("input()\ninput()", stdin=stdin).only("error")
            self.assertEqual((frame["name"], frame["message"]), ("EOFError", "EOF when reading a line"))

    def test_not_read(self):
        self.check("print(1)", out="1\n", stdin="x" * 1000000)

    def test_not_given(self):
        result = run("input('prompt> ')")
        frame = result.only("error")
        self.assertEqual((result.out, result.code, frame["name"], frame["message"]),
                         ("prompt> ", 1, "EOFError", NO_STDIN))
        self.assertTrue(frame["traceback"].startswith(
            "Traceback (most recent call last):\n  File \"<code>\", line 1, in <module>\n    input('prompt> ')\n"))
        self.assertTrue(frame["traceback"].endswith("\nEOFError: %s\n" % NO_STDIN))
        self.check("try:\n    input()\nexcept EOFError as e:\n    print(e)", out=NO_STDIN + "\n")
        self.check("import sys\nprint(repr(sys.stdin.read()), repr(sys.stdin.readline()), list(sys.stdin))",
                   out="'' '' []\n")

    def test_own_stdin(self):
        self.check("import io, sys\nsys.stdin = io.StringIO('mine\\n')\nprint(input())\ntry:\n    input()\n"
                   "except EOFError as e:\n    print(e)",
                   out="mine\nEOF when reading a line\n")

    def test_debugger(self):
        frame = self.error("x = 1\nbreakpoint()\nprint(x)")
        self.assertEqual((frame["name"], frame["message"]),
                         ("EOFError", "no standard input for the debugger: pass its commands as `stdin`"))
        frame = self.error("import pdb\nx = 1\npdb.set_trace()\nprint(x)")
        self.assertEqual((frame["name"], frame["message"]), ("BdbQuit", NO_STDIN))
        result = run("x = 5\nbreakpoint()\nprint('done')", stdin="p x + 1\nc\n")
        self.assertEqual((result.code, result.frames), (0, []), result)
        self.assertIn("6\n", result.out)
        self.assertIn("done\n", result.out)

    def test_getpass(self):
        result = run("import getpass, warnings\nwarnings.simplefilter('ignore')\nimport os\nos.setsid\n"
                     "getpass.getpass()")
        self.assertIn(result.only("error")["name"], ("EOFError", "OSError"))


class Processes(Case):
    def test_fork(self):
        result = run("""
            import os, sys
            pid = os.fork()
            if pid == 0:
                1/0
            _, status = os.waitpid(pid, 0)
            print(os.WEXITSTATUS(status))
            'parent'
            """)
        self.assertEqual((result.out, result.code, result.only("value")["json"]), ("1\n", 0, "parent"))
        self.assertTrue(result.err.startswith(
            'Traceback (most recent call last):\n  File "<code>", line 5, in <module>\n    1/0\n'))
        self.assertTrue(result.err.endswith("\nZeroDivisionError: division by zero\n"))

    def test_child_ends_as_python_does(self):
        for child, code in [("sys.exit(4)", 4), ("pass", 0), ("'a value'", 0), ("raise KeyboardInterrupt", 130),
                            ("os._exit(6)", 6)]:
            with self.subTest(child):
                result = run("import os, sys\nif os.fork():\n    print(os.WEXITSTATUS(os.wait()[1]))\n"
                             "    sys.exit()\n%s" % child)
                self.assertEqual((result.out, result.code, result.frames), ("%d\n" % code, 0, []))

    def test_value_of_the_parent_only(self):
        result = run("import os\npid = os.fork()\nif pid: os.wait()\npid > 0")
        self.assertIs(result.only("value")["json"], True)

    def test_raw_fork(self):
        result = run("import ctypes, os\npid = ctypes.CDLL(None).fork()\nif pid: os.wait()\npid > 0")
        self.assertIs(result.only("value")["json"], True)

    def test_child_outlives_the_program(self):
        result = run("import os, time\nif os.fork() == 0:\n    time.sleep(0.2); print('late'); os._exit(0)\n5")
        self.assertEqual((result.out, result.only("value")["json"]), ("late\n", 5))

    def test_multiprocessing(self):
        for method, name in ("fork", "<c>"), ("spawn", "<c>"), ("spawn", "prog.py"), ("forkserver", "dir/prog.py"):
            with self.subTest(method, name=name):
                result = run("""
                    import multiprocessing
                    def square(x):
                        return x * x
                    if __name__ == '__main__':
                        with multiprocessing.get_context(%r).Pool(2) as pool:
                            print(pool.map(square, range(5)))
                    """ % method, name=name)
                self.assertEqual((result.out, result.err, result.code, result.frames), (
                    "[0, 1, 4, 9, 16]\n", "", 0, []))

    def test_futures(self):
        result = run("""
            from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
            def square(x): return x * x
            if __name__ == '__main__':
                for kind in ProcessPoolExecutor, ThreadPoolExecutor:
                    with kind(2) as pool:
                        print(list(pool.map(square, range(4))))
            """)
        self.assertEqual((result.out, result.err, result.code), ("[0, 1, 4, 9]\n" * 2, "", 0))

    def test_subprocess(self):
        self.check("import subprocess, sys\n"
                   "print(subprocess.check_output([sys.executable, '-c', 'print(5)'], text=True))", out="5\n\n")


class Ends(Case):
    def test_threads_are_waited_for(self):
        result = run("import threading, time\n"
                     "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')\n5")
        self.assertEqual((result.out, result.only("value")["json"]), ("main\nthread\n", 5))

    def test_frame_is_sent_before_threads_are_waited_for(self):
        run_ = Run("import sys, threading\nthreading.Thread(target=sys.stdin.readline).start()\n5", stdin="\n")
        self.assertIn(b'"json":5', run_.ours.recv(1000))
        self.assertEqual(run_.end().code, 0)

    def test_daemon_threads_are_not(self):
        result = run("import threading, time\n"
                     "threading.Thread(target=lambda: (time.sleep(60), print('thread')), daemon=True).start()\n"
                     "print('main')")
        self.assertEqual((result.out, result.err, result.code), ("main\n", "", 0))
        result = run("import threading\ndef busy():\n    x = 0\n    while True: x = len(str(x))\n"
                     "for _ in range(3): threading.Thread(target=busy, daemon=True).start()")
        self.assertEqual((result.err, result.code), ("", 0))

    def test_exceptions_in_threads(self):
        result = run("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()\nprint('on')")
        self.assertEqual((result.out, result.code, result.frames), ("on\n", 0, []))
        self.assertIn("Exception in thread", result.err)
        self.assertIn("ZeroDivisionError", result.err)
        self.check("import threading, sys\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start()")

    def test_atexit(self):
        self.check("import atexit\natexit.register(print, 'one')\natexit.register(print, 'two')\nprint('main')",
                   out="main\ntwo\none\n")
        self.check("import atexit, sys\natexit.register(print, 'one')\nsys.exit(3)", out="one\n", code_=3)
        result = run("import atexit\natexit.register(print, 'one')\natexit.register(lambda: 1/0)\n1 + '2'")
        self.assertEqual((result.out, result.code, result.only("error")["name"]), ("one\n", 1, "TypeError"))
        self.assertIn("ZeroDivisionError", result.err)

    def test_interrupt_while_threads_are_waited_for(self):
        run_ = Run("import threading, time, os, signal\ndef work():\n"
                   "    time.sleep(0.1); os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)\n"
                   "threading.Thread(target=work).start()")
        result = run_.end()
        self.assertEqual((result.code, result.frames), (0, []))
        self.assertIn("KeyboardInterrupt", result.err)
        self.assertNotIn("runner", result.err)

    def test_finalizers_of_globals(self):
        self.check("import os\nclass A:\n    def __del__(self): print('del', helper(), os.sep, LIMIT)\n"
                   "def helper(): return 5\nLIMIT = 7\na = A()\nprint('end')",
                   out="end\ndel 5 / 7\n")
        self.check("class A:\n    def __del__(self): print('del')\na = A(); a.me = a\nb = [a]; b.append(b)",
                   out="del\n")
        result = run("class A:\n    def __del__(self): print('del')\na = A()\n1/0")
        self.assertEqual((result.out, result.only("error")["name"]), ("del\n", "ZeroDivisionError"))

    def test_files_left_open_are_written(self):
        workspace = tempfile.mkdtemp(dir=base)
        with open(os.path.join(workspace, "helper.py"), "w") as file:
            file.write("log = open('log', 'w')\nlog.write('log')\ndef f(): return log\n")
        self.check("import builtins, helper, sys\nf = open('f', 'w'); f.write('f')\ndef use(): f\n"
                   "class C: g = open('g', 'w'); g.write('g')\n"
                   "C.c = C\nbuiltins.h = open('h', 'w'); h.write('h')\nsys.excepthook = lambda *a: f\n"
                   "builtins.print = lambda *a: f\n",
                   workspace=workspace)
        for name, text in ("f", "f"), ("g", "g"), ("h", "h"), ("log", "log"):
            with open(os.path.join(workspace, name)) as file:
                self.assertEqual(file.read(), text)


class MainModule(Case):
    def test_names(self):
        result = run("print(sorted(globals()))\nimport sys\n"
                     "print(sys.argv, vars(sys.modules['__main__']) is globals(), "
                     "__name__, __doc__, __builtins__, 'runner' in sys.modules)", name="<prog>")
        lines = result.out.splitlines()
        self.assertEqual(lines[0], "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']")
        self.assertEqual(lines[1], "['<prog>'] True __main__ None <module 'builtins' (built-in)> False")

    def test_file(self):
        self.check("import sys\nprint(__file__, sys.argv)", out="dir/prog.py ['dir/prog.py']\n", name="dir/prog.py")
        self.assertEqual(self.error("__file__")["name"], "NameError")
        self.check("""
            import inspect
            from pathlib import Path
            class C: pass
            print(inspect.getsource(C), Path(__file__).resolve().parent == Path.cwd())""", name="prog.py",
                   out="class C: pass\n True\n")

    def test_docstring_and_future(self):
        self.check("'''doc'''\nprint(__doc__)", out="doc\n")
        self.assertEqual(self.value("'''doc'''\nfrom __future__ import annotations\ndef f(x: nowhere): pass\n"
                                    "f.__annotations__")["json"], {"x": "nowhere"})
        self.check("def f(): return 1\nprint(f.__code__.co_flags & 0x1000000)", out="0\n")

    def test_what_looks_at_main(self):
        result = run("""
            import dataclasses, pickle, typing
            @dataclasses.dataclass
            class P:
                x: int
                next: 'P' = None
            print(pickle.loads(pickle.dumps(P(1, P(2)))) == P(1, P(2)), typing.get_type_hints(P)['next'] is P, P(1))
            if __name__ == '__main__':
                print('main')
            """)
        self.assertEqual((result.out, result.err), ("True True P(x=1, next=None)\nmain\n", ""))

    def test_unittest(self):
        result = run("import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 2)\n"
                     "if __name__ == '__main__':\n    unittest.main()")
        self.assertEqual((result.code, result.frames), (1, []))
        self.assertIn("FAILED (failures=1)", result.err)

    def test_asyncio(self):
        self.check("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('ran')\nasyncio.run(f())",
                   out="ran\n")

    def test_long_program(self):
        code = "x = 0\n" + "x += 1  # %s\n" % ("." * 1100) * 1000 + "x"
        self.assertGreater(len(code), MIB)
        self.assertEqual(self.value(code)["json"], 1000)
        frame = self.error(code + " / 0")
        self.assertIn("line 1002, in <module>\n    x / 0\n", frame["traceback"])

    def test_one_warning_of_the_compiler(self):
        result = run("x = 1 is 1\n'\\d'\n5")
        self.assertEqual(result.err.count('SyntaxWarning: "is" with'), 1, result.err)
        self.assertLessEqual(result.err.count("invalid escape"), 1, result.err)


class Imports(Case):
    def test_same_path_as_python(self):
        plain = subprocess.run([sys.executable, "-I", "-c", "import sys; print(sys.path)"], env=ENVIRONMENT,
                               stdout=subprocess.PIPE, check=True)
        workspace = tempfile.mkdtemp(dir=base)
        result = run("import sys; print(sys.path[1:]); print(sys.path[0])\nimport site\nprint(sys.path[1:])",
                     workspace=workspace)
        path, first, complete = result.stdout.splitlines()
        self.assertEqual(path.decode(), plain.stdout.decode().strip())
        self.assertEqual(complete, path)
        self.assertEqual(first.decode(), workspace)

    def test_site_is_complete_when_it_can_matter(self):
        result = run(
            "import site, sys\n"
            "print(site.getsitepackages()[0] in sys.path, site.ENABLE_USER_SITE, sys.modules['site'] is site)")
        self.assertEqual((result.out, result.err), ("True False True\n", ""))

    def test_packages_can_be_imported(self):
        done = subprocess.run([sys.executable, "-I", "-c", "import pip; print(pip.__file__)"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode:
            self.skipTest("this interpreter has no pip to import")
        self.check("import pip; print(pip.__file__)", out=done.stdout.decode())
        self.assertTrue(self.value("import importlib.metadata as m; m.version('pip')")["json"])

    def test_pth_files(self):
        environment = os.path.join(base, "venv")
        subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", environment], check=True)
        packages = os.path.join(environment, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
        extra = tempfile.mkdtemp(dir=base)
        for path, text in [(os.path.join(packages, "a.pth"), extra + "\nimport sys; sys.marked = 1\n"),
                           (os.path.join(extra, "far.py"), "x = 5"),
                           (os.path.join(packages, "near.py"), "x = 6")]:
            with open(path, "w") as file:
                file.write(text)
        old = sys.executable
        sys.executable = os.path.join(environment, "bin", "python3")
        try:
            self.check("import far, near, sys\nprint(far.x, near.x, sys.marked, sys.prefix == %r)" % environment,
                       out="5 6 1 True\n")
        finally:
            sys.executable = old

    def test_files_of_the_workspace(self):
        workspace = tempfile.mkdtemp(dir=base)
        with open(os.path.join(workspace, "helper.py"), "w") as file:
            file.write("def f():\n    return 1/0\n")
        frame = self.error("import os\nos.chdir('/')\nimport helper\nhelper.f()", workspace=workspace)
        self.assertIn('  File "%s/helper.py", line 2, in f\n    return 1/0\n' % workspace, frame["traceback"])
        self.assertEqual(os.listdir(workspace), ["helper.py"])  # no __pycache__ among the files of the user

    def test_runner_cannot_be_imported(self):
        self.assertEqual(self.error("import runner")["name"], "ModuleNotFoundError")
        self.check(
            "import sys\n"
            "print([p for p in [*sys.path, *sys.path_importer_cache] if 'forge' in p], sys.modules.get('runner'))",
                   out="[] None\n")

    def test_success_imports_nothing(self):
        result = run("import sys\nprint(*sys.modules)\n[1, 'a', 2.5, {'b': None}]")
        self.assertIn("json", result.only("value"))
        loaded = set(result.out.split())
        self.assertFalse(loaded & {"re", "json", "ast", "_ast", "traceback", "typing", "threading", "inspect", "enum"})
        if (3, 11) <= sys.version_info < (3, 13):  # 3.13 has linecache and os; up to 3.10 site is not frozen
            self.assertFalse(loaded & {"os", "site", "linecache"})


class Accidents(Case):
    def test_builtins_replaced(self):
        names = ("print repr len open isinstance issubclass getattr id str type list set map max min __import__ "
                 "compile exec eval globals vars memoryview BaseException")
        code = "import builtins\nfor name in %r.split(): setattr(builtins, name, None)\n" % names
        self.assertEqual(self.value(code + "[1, 'a']"), {"type": "value", "json": [1, "a"], "repr": "[1, 'a']"})
        frame = self.error(code + "\n1/0")
        self.assertIn("    1/0\n", frame["traceback"])
        self.assertEqual(self.error("import builtins\nvars(builtins).clear()\n1/0")["name"], "ZeroDivisionError")
        self.assertEqual(self.value("del __builtins__\n5")["json"], 5)

    def test_modules_gone(self):
        self.assertEqual(self.value("import sys\nsys.modules.clear()\n5")["json"], 5)
        frame = self.error("import sys\nsys.modules.clear()\n1/0")
        self.assertEqual(frame["name"], "ZeroDivisionError")
        frame = self.error("import sys, io, posix\n"
                           "sys.modules['traceback'] = sys.modules['io'] = sys.modules['linecache'] = 5\n"
                           "posix.write = posix.fstat = posix._exit = None\n1/0")
        self.assertEqual(frame["name"], "ZeroDivisionError")
        self.assertEqual(self.error("import sys\nsys.path = sys.meta_path = None\n1/0")["name"], "ZeroDivisionError")
        frame = self.error("import sys\ndel sys.path, sys.excepthook, sys.__excepthook__, sys.meta_path\n1/0")
        self.assertEqual(frame["name"], "ZeroDivisionError")

    def test_out_of_descriptors(self):
        frame = self.error("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\nl = []\n"
                           "while True: l.append(open('/dev/null'))")
        self.assertEqual((frame["name"], frame["message"]),
                         ("OSError", "[Errno 24] Too many open files: '/dev/null'"))

    def test_out_of_memory(self):
        frame = self.error("import resource\nresource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
                           "x = [0]\nwhile True: x += x")
        self.assertEqual(frame["name"], "MemoryError")
        self.assertIn('File "<code>", line 4', frame["traceback"])

    def test_recursion_limit(self):
        self.assertEqual(self.error("import sys\nsys.setrecursionlimit(30)\ndef f(): f()\nf()")["name"],
                         "RecursionError")
        self.assertEqual(self.value("import sys\nsys.setrecursionlimit(30)\n[[[1]]]")["repr"], "[[[1]]]")

    def test_tracers_see_nothing_of_the_runner(self):
        for what in "settrace", "setprofile":
            for last in "5", "1/0":
                result = run("import sys\ndef t(frame, event, arg):\n    print(event, frame.f_code.co_filename)\n"
                             "sys.%s(t)\n%s" % (what, last))
                # A profiler sees that its code ends, the eval of the last expression, and by what it is put aside.
                seen = [line.split()[0] for line in result.out.splitlines() if "runner.py" in line]
                self.assertIn(seen, ([], ["c_call", "c_return", "c_call"], ["c_call", "c_exception", "c_call"]))
                self.assertEqual(len(result.frames), 1)

    def test_signals_of_the_program(self):
        self.assertEqual(self.value("import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
                                    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n5")["json"], 5)

    def test_no_whole_job(self):
        for size in 0, 4, 7, 14, 20:
            result = Run("print(1)", cut=size).end()
            self.assertEqual((result.stdout, result.code, result.frames), (b"", 125, []))
            self.assertIn("the agent sent no whole job", result.err)

    def test_agent_gone(self):
        run_ = Run("import sys\nsys.stdin.readline()\n'x' * 1000000", stdin="\n")
        run_.ours.close()
        run_.ours, other = socket.socketpair()
        other.close()
        self.assertEqual(run_.end().code, 0)


if __name__ == "__main__":
    unittest.main()
