"""Tests of the Python runner's rich output, with the real libraries and an agent that acknowledges.

    /usr/bin/python3 -m unittest test_display        (in this directory)

matplotlib, pandas and PIL must be there, unless MCP_FORGE_TEST_WITHOUT_LIBRARIES is set; tests of other libraries are
skipped where these are missing.
"""

import base64
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import time
import unittest

import test_runner
from test_runner import MIB, Case, Run, run, setUpModule, tearDownModule  # noqa: F401

PNG = b"\x89PNG\r\n\x1a\n"
OPEN = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
FORMS = """
class Form:
    def __init__(self, **forms):
        for name, form in forms.items():
            setattr(self, '_repr_%s_' % name, form if callable(form) else lambda form=form: form)
    def __repr__(self):
        return 'a form'
"""


def needs(*names, must=False):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing and must and "MCP_FORGE_TEST_WITHOUT_LIBRARIES" not in os.environ:
        raise RuntimeError("missing: %s (or set MCP_FORGE_TEST_WITHOUT_LIBRARIES)" % ", ".join(missing))
    return unittest.skipIf(missing, "not installed: %s" % ", ".join(missing))


class DisplayCase(Case):
    def shown(self, code, out="", err="", code_=0, other=(), **options):
        """The data of the displays of a program, which come first."""
        result = run(code, **options)
        self.assertEqual((result.out, result.err, result.code), (out, err, code_), result)
        return self.displays(result, other)

    def displays(self, result, other=()):
        kinds = [frame["type"] for frame in result.frames]
        count = kinds.count("display")
        self.assertEqual(kinds, ["display"] * count + list(other), result.stderr)
        self.assertEqual(len(result.places), count)
        for frame in result.frames[:count]:
            self.assertEqual(list(frame), ["type", "data"])
        return [frame["data"] for frame in result.frames[:count]]

    def size(self, data):
        """Width and height of a PNG image."""
        image = base64.b64decode(data["image/png"], validate=True)
        self.assertEqual(image[:8], PNG)
        self.assertLessEqual(len(image), 2_900_000)
        return struct.unpack(">II", image[16:24])


@needs("matplotlib", must=True)
class Matplotlib(DisplayCase):
    def widths(self, code, **options):
        """Which figures are shown: a figure of the tests tells its number by the width of its image."""
        prologue = ("import matplotlib.pyplot as plt\n"
                    "def figure(n):\n    f = plt.figure(figsize=(n, 1))\n"
                    "    f.add_axes([0, 0, 1, 1], xticks=[], yticks=[])\n    return f\n")
        return [round(self.size(data)[0] / 100) for data in self.shown(prologue + code, **options)]

    def test_show_in_order(self):
        result = run("import matplotlib.pyplot as plt\nprint('a')\nplt.plot([1, 2]); plt.show()\nprint('b')\n"
                     "plt.plot([2, 1]); plt.show(); print('c')")
        self.assertEqual((result.out, result.err, result.code), ("a\nb\nc\n", "", 0))
        self.assertEqual(result.places, [(2, 0), (4, 0)])
        first, second = self.displays(result)
        self.assertEqual(list(first), ["image/png", "text/plain"])
        self.assertEqual(first["text/plain"], "<Figure size 640x480 with 1 Axes>")
        self.assertNotEqual(first["image/png"], second["image/png"])
        self.assertTrue(400 < self.size(first)[0] < 700)

    def test_show_closes(self):
        self.assertEqual(self.widths("figure(1); figure(2); plt.show(); print(plt.get_fignums())\n"
                                     "figure(3); plt.show()\n"
                                     "plt.show(); figure(4)", out="[]\n", other=["value"]), [1, 2, 3, 4])

    def test_open_at_the_end_in_order_of_number(self):
        self.assertEqual(self.widths("a = figure(1); b = figure(2); c = figure(3)\nplt.figure(a.number)\n"
                                     "plt.close(b); print('end')", out="end\n"), [1, 3])
        self.assertEqual(self.widths("figure(1)\nplt.close()"), [])

    def test_open_after_an_exception_or_exit(self):
        self.assertEqual(self.widths("figure(1)\n1/0", code_=1, other=["error"]), [1])
        self.assertEqual(self.widths("import sys\nfigure(1)\nsys.exit(3)", code_=3), [1])
        run_ = Run(OPEN + "import time\nprint('on'); time.sleep(60)")
        run_.read_until(b"on")
        os.kill(run_.pid, signal.SIGINT)
        result = run_.end()
        self.assertEqual((result.code, len(self.displays(result, ["error"]))), (130, 1))

    def test_last_value_is_shown_once(self):
        self.assertEqual(self.widths("a = figure(1); b = figure(2)\na", other=["value"]), [1, 2])
        self.assertEqual(self.widths("a = figure(1); plt.show()\na", other=["value"]), [1])
        result = run("from matplotlib.figure import Figure\nf = Figure()\nf.subplots()\nf")  # without pyplot
        self.assertEqual(list(self.displays(result, ["value"])[0]), ["image/png"])
        self.assertEqual(result.frames[-1]["repr"], "<Figure size 640x480 with 1 Axes>")

    def test_shown_again_only_when_changed(self):
        self.assertEqual(self.widths("a = figure(1); display(a)"), [1])
        self.assertEqual(self.widths("a = figure(1); display(a); a.axes[0].plot([1, 2]); plt.show()"), [1, 1])
        self.assertEqual(self.widths("a = figure(1); display(a); display(a)"), [1, 1])
        self.assertEqual(self.widths("a = figure(1); figure(2); a.show()"), [1, 2])

    def test_savefig(self):
        self.assertEqual(self.widths("f = figure(1)\nplt.savefig('a.png'); f.savefig('b.pdf'); f.savefig('c.svg')\n"
                                     "import os; print(*sorted(n for n in os.listdir() if n[0] != '.'))",
                                     out="a.png b.pdf c.svg\n"), [1])

    def test_backends_of_the_program(self):
        for name in "agg", "svg", "pdf":
            with self.subTest(name):
                self.assertEqual(self.widths("plt.switch_backend(%r)\nfigure(1); plt.show()\n"
                                             "figure(2); print(plt.get_backend().lower())" % name, out=name + "\n"),
                                 [1, 2])
        code = "import matplotlib\nmatplotlib.use('agg')\nfigure(1); plt.show()\nfigure(2)\nNone"
        self.assertEqual(self.widths(code), [1, 2])
        code = "figure(1); plt.show()\nfigure(2); print(plt.get_backend().lower(), end='')\nNone"
        self.assertEqual(self.widths(code, out="agg"), [1, 2])
        self.assertEqual(self.widths(code, out="svg", environment={"MPLBACKEND": "svg"}), [1, 2])
        self.assertEqual(self.widths(code, out="agg", environment={"DISPLAY": ":77"}), [1, 2])

    def test_children_find_a_backend_themselves(self):
        self.check("import subprocess, sys, matplotlib, os\nprint('MPLBACKEND' in os.environ, flush=True)\n"
                   "subprocess.run([sys.executable, '-c', %r])\nNone" %
                   (OPEN + "plt.savefig('a.png'); print('saved')"), out="False\nsaved\n")

    def test_interactive_programs(self):
        started = time.monotonic()
        self.assertEqual(self.widths("plt.ion(); f = figure(1)\nfor n in range(5):\n"
                                     "    f.axes[0].plot([n]); plt.pause(0.01)\n"
                                     "    plt.draw(); f.canvas.draw_idle(); f.canvas.flush_events()\n"
                                     "plt.ioff(); plt.show(block=True)\nplt.show(block=False)\n"
                                     "None"),
                         [1])
        self.assertLess(time.monotonic() - started, 20)

    def test_no_warnings(self):
        self.assertEqual(self.widths("import warnings\nwarnings.simplefilter('error')\n"
                                     "figure(1); plt.show(); figure(2).show()"),
                         [1, 2])

    def test_empty_figure_is_text(self):
        self.assertEqual(self.shown("import matplotlib.pyplot as plt\nplt.figure(); plt.show()"),
                         [{"text/plain": "<Figure size 640x480 with 0 Axes>"}])
        self.assertIn("image/png", self.shown("import matplotlib.pyplot as plt\nplt.figtext(0, 0, 'text');")[0])

    def test_figures_that_cannot_be_drawn(self):
        code = "import matplotlib.pyplot as plt\nplt.title(r'$\\foo$')\nplt.figure(); plt.plot([1])\n"
        result = run(code + "plt.show()")
        self.assertEqual((result.code, len(self.displays(result, ["error"]))), (1, 1))
        self.assertIn("line 4, in <module>\n    plt.show()\n", result.frames[-1]["traceback"])
        self.assertNotIn("display.py", result.frames[-1]["traceback"])
        self.assertNotIn("runner.py", result.frames[-1]["traceback"])
        result = run(code + "5")
        self.assertEqual((result.code, len(self.displays(result, ["value"]))), (0, 1))
        self.assertTrue(result.err.startswith("Figure 1 cannot be drawn:\nTraceback"), result.err)
        self.assertIn("Unknown symbol", result.err)

    def test_large_figures(self):
        noise = ("import matplotlib.pyplot as plt, numpy\nplt.figure(figsize=(%s), dpi=%d)\n"
                 "plt.imshow(numpy.random.rand(1500, 1500, 3), interpolation='nearest', aspect='auto')\n"
                 "plt.axis('off')\nNone")
        data, = self.shown(noise % ("15, 15", 150))
        self.size(data)
        self.assertRegex(data["text/plain"], r"\n\[drawn at \d+ dots per inch, not 150: it would be too large\]$")
        data, = self.shown("import matplotlib.pyplot as plt\nplt.figure(figsize=(900, 900)); plt.plot([1])\nNone")
        self.assertLess(self.size(data)[0], 5000)
        data, = self.shown("import matplotlib.pyplot as plt\nplt.plot([1]); plt.text(900, 900, 'far')\nNone")
        self.assertLess(self.size(data)[0], 700)
        data, = self.shown("import matplotlib.pyplot as plt\nplt.figure(figsize=(2000, 0.1)); plt.plot([1])\nNone")
        self.assertLess(self.size(data)[0], 40000)

    def test_pandas_plot(self):
        data, = self.shown("import pandas\npandas.DataFrame({'a': [1, 2]}).plot();")
        self.size(data)

    @needs("seaborn")
    def test_seaborn(self):
        self.assertEqual(len(self.shown("import seaborn, pandas\nd = pandas.DataFrame({'a': [1, 2], 'b': [2, 3]})\n"
                                        "seaborn.scatterplot(data=d, x='a', y='b')", other=["value"])), 1)

    def test_children_and_threads(self):
        self.assertEqual(self.widths("import os\nfigure(1)\nif os.fork() == 0:\n"
                                     "    plt.show(); print('child'); os._exit(0)\n"
                                     "os.wait()", out="child\n", other=["value"]), [1])
        self.assertEqual(self.widths("import os\nfigure(1)\nif os.fork() > 0: os.wait(); os._exit(0)"), [])
        self.assertEqual(self.widths("import threading\nfigure(1)\nt = threading.Thread(target=plt.show)\n"
                                     "t.start(); t.join()"),
                         [1])

    def test_drawing_that_ends_the_program(self):
        prologue = OPEN + ("import os, sys, time\nclass A(type(plt.gca().lines[0])):\n"
                           "    def draw(self, r): %s\nplt.gca().add_line(A([], []))\n")
        self.assertEqual(run(prologue % "os._exit(7)" + "plt.show()").code, 7)
        self.assertEqual(run(prologue % "os._exit(7)").code, 7)
        self.assertEqual(run(prologue % "sys.exit(8)").code, 8)
        run_ = Run(prologue % "print('on'); time.sleep(60)" + "5")
        run_.read_until(b"on")
        os.kill(run_.pid, signal.SIGINT)
        result = run_.end()
        self.assertEqual((result.code, result.frames[-1]["name"]), (130, "KeyboardInterrupt"))
        result = run(prologue % "1/0" + "import matplotlib\nmatplotlib.figure = None; sys.modules.clear(); 5")
        self.assertEqual((result.code, result.frames[-1]["type"]), (0, "value"))
        self.assertIn("Figure 1 cannot be drawn:\n", result.err)

    def test_not_imported_not_loaded(self):
        result = run("import sys\n"
                     "print([n for n in sys.modules if 'display' in n or 'matplotlib' in n or 'base64' in n])")
        self.assertEqual(result.out, "[]\n")


class Protocol(DisplayCase):
    def test_each_form(self):
        for name, value, mime, expected in [
            ("png", PNG + b"x", "image/png", base64.b64encode(PNG + b"x").decode()),
            ("jpeg", bytearray(b"x"), "image/jpeg", "eA=="), ("svg", "<svg>é</svg>", "image/svg+xml", "<svg>é</svg>"),
            ("png", "eA==\n", "image/png", "eA=="), ("html", "<b>\ud800\"</b>", "text/html", "<b>\\ud800\"</b>"),
            ("json", {"a": [1, None]}, "application/json", {"a": [1, None]}),
            ("json", ["x"], "application/json", ["x"]),
            ("html", ("<i>", {"meta": 1}), "text/html", "<i>"),
            ("mimebundle", "lambda include, exclude: {'image/gif': b'x', 'x/y': 5}", "image/gif", "eA=="),
            ("mimebundle", "lambda **_: ({'image/webp': 'eA==', 'text/plain': 'mine'}, {})", "image/webp", "eA=="),
        ]:
            with self.subTest(name):
                form = value if str(value).startswith("lambda") else repr(value)
                code = FORMS + "f = Form(%s=%s)\n" % (name, form)
                self.assertEqual(self.shown(code + "f", other=["value"]), [{mime: expected}])
                text = "mine" if "mine" in form else "a form"
                self.assertEqual(self.shown(code + "display(f)"), [{mime: expected, "text/plain": text}])

    def test_value_frame_stays(self):
        result = run(FORMS + "class D(dict): _repr_html_ = lambda self: '<b>'\nForm(html='<b>')")
        self.assertEqual(result.frames[-1], {"type": "value", "repr": "a form"})

    def test_raising_repr(self):
        code = FORMS + "class X(Form):\n    def __repr__(self): raise ValueError('no')\n"
        text = "<X object: repr raised ValueError: no>"
        self.assertEqual(self.shown(code + "display(X())", out=text + "\n"), [])
        self.assertEqual(self.shown(code + "display(X(html='<b>'))"), [{"text/html": "<b>", "text/plain": text}])
        self.assertEqual(self.shown(code + "X(html='<b>')", code_=1, other=["error"]), [{"text/html": "<b>"}])

    def test_text_is_printed(self):
        self.check(FORMS + "display(5, 'x', [1], None, Form(), int); display()",
                   out="5\n'x'\n[1]\nNone\na form\n<class 'int'>\n")
        self.check("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as s: display(5)\n"
                   "print(repr(s.getvalue()))", out="'5\\n'\n")

    def test_markdown_and_latex(self):
        self.check(FORMS + "display(Form(markdown='# m', latex='$l$'))", out="a form\n")
        plain = FORMS + "Form.__repr__ = object.__repr__\n"
        self.check(plain + "display(Form(markdown='# m', latex='$l$')); display(Form(latex='$l$'))", out="# m\n$l$\n")
        self.assertEqual(self.shown(plain + "Form(latex='$l$')", other=["value"]), [{"text/plain": "$l$"}])
        self.assertEqual(self.shown(FORMS + "Form(latex='$l$')", other=["value"]), [])

    def test_order_with_output(self):
        result = run(FORMS + "import sys\nfor n in range(50):\n    print('o' * 99); sys.stderr.write('e')\n"
                             "    display(Form(html=str(n)))")
        self.assertEqual(result.places, [(100 * n, n) for n in range(1, 51)])
        self.assertEqual([data["text/html"] for data in self.displays(result)], [str(n) for n in range(50)])
        result = run(FORMS + "import io, sys\n"
                             "sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w')), 'utf-8')\n"
                             "print('first'); display(Form(html='x')); print('then')")
        self.assertEqual((result.out, result.places), ("first\nthen\n", [(6, 0)]))

    def test_methods_that_fail(self):
        for name in "html", "mimebundle":
            result = run(FORMS + "def f(**_): 1/0\ndisplay(Form(%s=f, png=b'x'))" % name)
            self.assertEqual(self.displays(result), [{"image/png": "eA==", "text/plain": "a form"}])
            self.assertTrue(result.err.startswith("_repr_%s_ of a Form object failed:\nTraceback" % name), result.err)
            self.assertIn("in f\n    def f(**_): 1/0\n", result.err)
            self.assertNotIn("display.py", result.err)
        result = run(FORMS + "def f(): 1/0\ndisplay(Form(html=f))")
        self.assertEqual((result.out, result.code, result.frames), ("a form\n", 0, []))
        result = run(FORMS + "def f(): 1/0\nForm(html=f)")
        self.assertEqual((result.code, result.only("value")["repr"]), (0, "a form"))
        self.assertIn("ZeroDivisionError", result.err)
        self.check(FORMS + "def f(): raise NotImplementedError\ndisplay(Form(html=f))", out="a form\n")

    def test_results_of_wrong_types(self):
        for name, value in [("html", None), ("html", 5), ("html", b"x"), ("png", 5), ("png", None), ("json", None),
                            ("mimebundle", 5), ("mimebundle", None), ("svg", []), ("html", ()),
                            ("png", ("a", "b", "c"))]:
            with self.subTest((name, value)):
                self.check(FORMS + "display(Form(%s=%s))" % (
                    name, "lambda **_: %r" % (value,) if name == "mimebundle" else "lambda: %r" % (value,)),
                           out="a form\n")
        self.check(FORMS + "class L: _repr_html_ = 5\nL.__repr__ = Form.__repr__\ndisplay(L())", out="a form\n")

    def test_what_is_no_instance_or_lies(self):
        self.check("class C:\n    def _repr_html_(self): return 'x'\ndisplay(C)", out="<class '__main__.C'>\n")
        self.assertEqual(self.shown("class C:\n    _repr_html_ = classmethod(lambda c: 'x')\n"
                                    "    __repr__ = lambda s: 'r'\n"
                                    "class M(type): __repr__ = lambda s: 'c'\nclass D(C, metaclass=M): pass\n"
                                    "display(D)"),
                         [{"text/html": "x", "text/plain": "c"}])
        self.check("class L:\n    def __getattr__(self, n): return lambda *a, **k: '<b>'\n"
                   "    def __repr__(self): return 'r'\n"
                   "display(L())", out="r\n")
        self.check("class L:\n    def __getattr__(self, n): 1/0\n    def __repr__(self): return 'r'\n"
                   "display(L())", out="r\n")
        self.assertEqual(self.value("import unittest.mock\nm = unittest.mock.MagicMock(name='m')\nm")["repr"][:10],
                         "<MagicMock")

    def test_ipython_display(self):
        code = "class C:\n    def __repr__(self): return 'r'\n    def _ipython_display_(self): %s\nc = C()\n"
        self.check(code % "print('own')" + "display(c)", out="own\n")
        self.check(code % "raise NotImplementedError" + "display(c)", out="r\n")
        self.assertEqual(run(code % "1/0" + "display(c)").out, "r\n")
        result = run(code % "print('own')" + "c")
        self.assertEqual((result.out, result.only("value")["repr"]), ("own\n", "r"))

    def test_bounds(self):
        for name, value, mime, note in [
            ("html", "'x' * 3500000", "text/html", "3.3 MiB, more than 1"),
            ("svg", "'\"' * 600000", "image/svg+xml", "1.1 MiB"),
            ("json", "['x' * 9] * 200000", "application/json", "too big"),
            ("json", "{1: 2}", "application/json", "a key"),
            ("png", "b'x' * 3000000", "image/png", "3.0 MB, more than 2.9"), ("png", "'x'", "image/png", "no base64"),
            ("json", "'\\ud800'", "application/json", "lone surrogates"),
        ]:
            with self.subTest((name, value)):
                code = FORMS + "f = Form(%s=%s)\n" % (name, value)
                data, = self.shown(code + "display(f)")
                self.assertEqual(list(data), ["text/plain"])
                self.assertTrue(data["text/plain"].startswith("a form\n[%s left out: " % mime), data)
                self.assertIn(note, data["text/plain"])
                data, = self.shown(code + "f", other=["value"])
                self.assertTrue(data["text/plain"].startswith("[%s left out: " % mime), data)
        many = "Form(png=b'x' * 2900000, svg='s' * 1000000, html='h' * 1000000, json=['j' * 1000000])"
        data, = self.shown(FORMS + "display(%s)" % many)
        self.assertEqual(set(data), {"image/png", "text/plain"})
        self.assertEqual(data["text/plain"].count("left out: no room for it beside the others"), 3)
        data, = self.shown(FORMS + "Form.__repr__ = lambda s: 'r' * 5000000\ndisplay(Form(html='x'))")
        self.assertTrue(MIB - 1000 < len(data["text/plain"]) <= MIB)

    def test_raw_ids_and_selection(self):
        self.assertEqual(self.shown("display({'text/html': 'x', 'text/plain': 'p'}, raw=True)"),
                         [{"text/html": "x", "text/plain": "p"}])
        self.assertEqual(self.shown(FORMS + "f = Form(html='x', svg='s')\ndisplay(f, include=['text/html'])\n"
                                            "display(f, exclude=['text/html'], metadata={}, clear=True)"),
                         [{"text/html": "x", "text/plain": "a form"}, {"image/svg+xml": "s", "text/plain": "a form"}])
        self.check("h = display(5, display_id=True); h.update(6); h.display(7)\n"
                   "print(h, display(8, display_id='x').display_id)",
                   out="5\n6\n7\n8\n<DisplayHandle display_id=display-1> x\n")

    def test_names_of_the_program_come_first(self):
        self.check("def display(x): print('mine', x)\ndisplay(5)", out="mine 5\n")
        self.check("print(display.__module__, display.__name__)", out="builtins display\n")
        self.check("import builtins\ndel builtins.display\ntry:\n    display\n"
                   "except NameError: print('gone')", out="gone\n")

    def test_errors_point_at_the_program(self):
        traceback = self.error("class C:\n    def __repr__(self): raise SystemError('x')\n    "
                               "@property\n    def _repr_html_(self): raise KeyboardInterrupt\n"
                               "try:\n    display(C())\nexcept KeyboardInterrupt: pass\n"
                               "display(5, raw=True)")["traceback"]
        self.assertEqual(traceback.count("File "), 1)


class Robust(DisplayCase):
    def test_forks_print(self):
        result = run(FORMS + "import os\ndisplay(Form(html='x'))\nif os.fork() == 0:\n"
                             "    display(Form(html='x')); os._exit(0)\n"
                             "os.wait(); display(Form(html='y'));")
        self.assertEqual((result.out, result.code, result.err), ("a form\n", 0, ""))
        self.assertEqual([data["text/html"] for data in self.displays(result)], ["x", "y"])

    def test_fork_while_sending(self):
        result = run(FORMS + "import os, threading, warnings\nwarnings.simplefilter('ignore')  # of 3.12 and on\n"
                             "def work():\n    for _ in range(100): display(Form(html='x' * 100000))\n"
                             "threads = [threading.Thread(target=work) for _ in range(3)]\n"
                             "for t in threads: t.start()\n"
                             "for _ in range(30):\n"
                             "    if os.fork() == 0:\n        display(Form(html='no')); os._exit(0)\n"
                             "    os.wait()")
        self.assertEqual((len(self.displays(result)), result.code), (300, 0))

    def test_threads(self):
        result = run(FORMS + "import threading\ndef work(n):\n"
                             "    for m in range(40): display(Form(html='%d %d' % (n, m)))\n"
                             "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
                             "for t in ts: t.start()\nfor t in ts: t.join()\n5")
        texts = [data["text/html"] for data in self.displays(result, ["value"])]
        self.assertEqual(len(texts), 320)
        for n in range(8):
            self.assertEqual([t for t in texts if t.startswith("%d " % n)], ["%d %d" % (n, m) for m in range(40)])

    def test_daemon_threads_tear_nothing(self):
        for _ in range(5):
            result = run(FORMS + "import threading, time\ndef work():\n"
                                 "    while True: display(Form(html='x' * 900000))\n"
                                 "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
                                 "time.sleep(0.05)\n5")
            self.assertEqual((result.code, [f["type"] for f in result.frames].count("value")), (0, 1))

    def test_handlers_tear_nothing(self):
        result = run(FORMS + """
import signal
class Late(Exception): pass
def handler(*_): raise Late
signal.signal(signal.SIGALRM, handler)
caught = 0
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        for _ in range(5): display(Form(html='x' * 200000))
    except Late:
        caught += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Late:
        pass
caught > 0
""")
        self.assertEqual((result.code, result.err, result.frames[-1].get("json")), (0, "", True), result.frames[-1])

    def test_handlers_may_display(self):
        result = run(FORMS + "import signal\ndef handler(*_):\n"
                             "    display(Form(html='h')); signal.setitimer(signal.ITIMER_REAL, 0.0005)\n"
                             "signal.signal(signal.SIGALRM, handler); handler()\n"
                             "for _ in range(100): display(Form(html='x' * 100000))\n"
                             "signal.setitimer(signal.ITIMER_REAL, 0);")
        texts = [data["text/html"] for data in self.displays(result)]
        self.assertEqual((result.code, texts.count("x" * 100000)), (0, 100))

    def test_finalizers_may_display(self):
        result = run(FORMS + "import gc\nclass A:\n    def __del__(self): display(Form(html='d'))\n"
                             "gc.set_threshold(1)\nfor _ in range(200):\n    a = A(); a.a = a; del a\n"
                             "    display(Form(html='x'))\n"
                             "gc.set_threshold(700);")
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertEqual([f["data"]["text/html"] for f in result.frames].count("x"), 200)

    def test_descriptor_closed(self):
        for close in "os.close(3)", "os.closerange(3, 100); open('mine', 'w')":
            with self.subTest(close):
                result = run(FORMS + "import os\n%s\ndisplay(Form(html='x')); print('on')\nForm(html='x')" % close)
                self.assertEqual((result.out, result.err, result.code, result.frames), ("a form\non\n", "", 0, []))

    def test_agent_gone(self):
        run_ = Run(FORMS + "import sys\nsys.stdin.readline()\nfor _ in range(3): display(Form(html='x' * 900000))\n"
                           "print('on')",
                   stdin="\n")
        run_.ours.close()
        run_.ours, other = socket.socketpair()
        other.close()
        result = run_.end()
        self.assertEqual((result.out.replace("a form\n", ""), result.err, result.code), ("on\n", "", 0))

    def test_agent_goes_before_it_answers(self):
        run_ = Run(FORMS + "display(Form(html='x')); print('on'); 5")
        run_.ours.recv(5, socket.MSG_WAITALL)
        run_.ours.close()
        run_.ours, other = socket.socketpair()
        other.close()
        result = run_.end()
        self.assertEqual((result.out.replace("a form\n", ""), result.err, result.code), ("on\n", "", 0))

    def test_answer_taken_by_the_program(self):
        result = run(FORMS + "import os, threading, _thread\n_thread.start_new_thread(lambda: os.read(3, 1), ())\n"
                             "import time; time.sleep(0.1)\n"
                             "t = threading.Thread(target=display, args=(Form(html='x'),), daemon=True)\n"
                             "t.start(); t.join(0.5)\n5")
        self.assertEqual((result.code, result.frames[-1].get("json")), (0, 5))

    def test_interrupt_while_waiting(self):
        run_ = Run(FORMS + "display(Form(html='x'))")
        header = run_.ours.recv(4, socket.MSG_WAITALL)
        size = struct.unpack(">I", header)[0]
        self.assertTrue(size & test_runner.ACKNOWLEDGE)
        run_.ours.recv(size & ~test_runner.ACKNOWLEDGE, socket.MSG_WAITALL)
        os.kill(run_.pid, signal.SIGINT)
        time.sleep(0.5)
        run_.ours.send(b"\6")
        result = run_.end()
        self.assertEqual((result.code, result.only("error")["name"]), (130, "KeyboardInterrupt"))

    def test_no_threads_left(self):
        self.assertEqual(self.shown(FORMS + "import resource\n"
                                            "resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\n"
                                            "import _thread\n_thread.stack_size(1 << 30)\ndisplay(Form(html='x'))"),
                         [{"text/html": "x", "text/plain": "a form"}])

    def test_builtins_and_modules_gone(self):
        result = run(FORMS + "d, f = display, Form(html='x', png=b'x')\nd(f)\nimport builtins, sys\n"
                             "for n in 'print len isinstance getattr callable sorted dict str any __import__'\\\n"
                             "         .split():\n"
                             "    setattr(builtins, n, None)\n"
                             "d(f)\nvars(builtins).clear(); d(f); f")
        self.assertEqual((len(self.displays(result, ["value"])), result.code, result.err), (4, 0, ""))
        result = run(FORMS + "display(Form(html='x'))\nimport sys\n"
                             "sys.modules.clear(); sys.path = sys.meta_path = None\n"
                             "Form(png=b'x')")
        self.assertEqual((result.code, result.frames[-1]["type"]), (0, "value"), result)
        self.assertEqual(result.frames[0]["data"]["text/html"], "x")
        result = run(FORMS + "import sys\nsys.modules.clear(); sys.path = None\nForm(html='x')")
        self.assertEqual((result.code, result.frames[-1]["type"]), (0, "value"), result)
        result = run(FORMS + "import sys\nsys.meta_path = sys.modules = None\nForm(html='x')")
        self.assertEqual((result.code, result.frames[-1]["type"]), (0, "value"), result)
        result = run(FORMS + "import sys\nsys.stdout = sys.stderr = None\ndisplay(Form(html='x'), 5)\n"
                             "del sys.stdout, sys.stderr\n"
                             "Form(html='y')")
        self.assertEqual([data["text/html"] for data in self.displays(result, ["value"])], ["x", "y"])
        result = run(FORMS + "import sys\nclass S:\n    def write(self, t): pass\n    def flush(self): 1/0\n"
                             "old = sys.stdout, sys.stderr\nsys.stdout = sys.stderr = S()\ndisplay(Form(html='x'))\n"
                             "sys.stdout, sys.stderr = old")
        self.assertEqual((len(self.displays(result)), result.code), (1, 0))

    def test_metaclass_of_the_program(self):
        self.assertEqual(self.value("class M(type):\n    def __hash__(self): 1/0\n    def __eq__(self, o): 1/0\n"
                                    "class C(metaclass=M):\n    def __repr__(self): return 'r'\nC()")["repr"], "r")
        self.assertEqual(self.value("class C:\n    __class__ = property(lambda s: 1/0)\n    __repr__ = lambda s: 'r'\n"
                                    "C()")["repr"],
                         "r")

    def test_forms_that_end_the_program(self):
        code = FORMS.replace("%", "%%") + "def f(): %s\nForm(html=f)"
        self.assertEqual(run(code % "raise SystemExit(4)").code, 4)
        result = run(code % "raise KeyboardInterrupt")
        self.assertEqual((result.code, result.only("error")["name"]), (130, "KeyboardInterrupt"))
        self.assertEqual(run(code % "import os; os._exit(9)").code, 9)
        result = run(code % "return f()")
        self.assertEqual((result.code, result.only("value")["repr"]), (0, "a form"))
        self.assertIn("RecursionError", result.err)

    def test_out_of_descriptors(self):
        result = run(FORMS + "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))\nForm(html='x')")
        self.assertEqual((result.code, result.only("value")["repr"]), (0, "a form"))
        self.assertIn("The output could not be shown in full:\n", result.err)

    def test_displays_of_threads_and_exit_functions(self):
        result = run(FORMS + "import atexit, threading, time\natexit.register(lambda: display(Form(html='a')))\n"
                             "threading.Thread(target=lambda: (time.sleep(0.2), display(Form(html='t')))).start()\n'v'")
        self.assertEqual([f["type"] for f in result.frames], ["value", "display", "display"])
        self.assertEqual([f["data"]["text/html"] for f in result.frames[1:]], ["t", "a"])

    def test_tracers_see_nothing_of_the_sender(self):
        self.assertEqual(len(self.shown(FORMS + "import sys, threading\nsys.settrace(lambda *a: None)\n"
                                                "threading.settrace(lambda *a: None)\ndisplay(Form(html='x'))\n"
                                                "assert threading.active_count() == 1")), 1)


@needs("pandas", must=True)
class Pandas(DisplayCase):
    def test_frame(self):
        result = run("import pandas\npandas.DataFrame({'a': range(10000), 'b': 'x'})")
        data, = self.displays(result, ["value"])
        self.assertEqual(list(data), ["text/html"])
        self.assertIn("<table", data["text/html"])
        self.assertLess(len(data["text/html"]), 5000)
        self.assertIn("[10000 rows x 2 columns]", result.frames[-1]["repr"])
        self.assertLess(len(result.frames[-1]["repr"]), 1000)

    def test_wide_frame(self):
        result = run("import pandas\npandas.DataFrame({'c%d' % n: [n] * 100 for n in range(500)})")
        self.assertLess(len(self.displays(result, ["value"])[0]["text/html"]), 30000)
        self.assertLess(len(result.frames[-1]["repr"]), 10000)

    FRAME = "pandas.DataFrame({'a': [1, 2, 3], 'b': ['x', None, 'z'], 'c': [.5, 1, 2], 'd': [True, False, True]})"

    def json(self, *codes):
        """JSON of each, as text, in which 1, 1.0 and true differ; None without it. A display has that of values."""
        show = "".join(["display({'application/json': %s}, raw=True)\n" % code for code in codes])
        return [json.dumps(data["application/json"]) if "application/json" in data else None
                for data in self.shown("import numpy, pandas\n" + show)]

    def test_scalars_and_arrays_as_json(self):
        expected = [
            ("numpy.float64(2.5)", "2.5"), ("numpy.float32(0.5)", "0.5"), ("numpy.int64(-3)", "-3"),
            ("numpy.uint64(2**64 - 1)", str(2**64 - 1)), ("numpy.bool_(True)", "true"), ("numpy.str_('x')", '"x"'),
            ("{'a': [numpy.int8(1), numpy.arange(2)]}", '{"a": [1, [0, 1]]}'),
            ("numpy.arange(3)", "[0, 1, 2]"), ("numpy.eye(2)", "[[1.0, 0.0], [0.0, 1.0]]"),
            ("numpy.array(['a', 'é'])", '["a", "\\u00e9"]'), ("numpy.array([True])", "[true]"),
            ("numpy.array([1, 'a', None, numpy.arange(1)], dtype=object)", '[1, "a", null, [0]]'),
            ("numpy.zeros((2, 0))", "[[], []]"), ("numpy.arange(3, dtype='>i4')[::-1]", "[2, 1, 0]"),
            ("numpy.zeros((10, 100), dtype=int).tolist() == numpy.zeros((10, 100), dtype=int)", "[%s]" % ", ".join(
                ["[%s]" % ", ".join(["true"] * 100)] * 10)),
        ]
        self.assertEqual(list(zip(dict(expected), self.json(*dict(expected)))), expected)
        self.assertEqual(self.value("import numpy\nnumpy.arange(2)"),
                         {"type": "value", "json": [0, 1], "repr": "array([0, 1])"})

    def test_pandas_as_json(self):
        first = '{"a": 1, "b": "x", "c": 0.5, "d": true}'
        expected = [
            ("pandas.Series([1, 2])", "[1, 2]"), ("pandas.Series([1.5, 2], ['a', 'b'])", '{"a": 1.5, "b": 2.0}'),
            ("pandas.Series(['u', 'v'], dtype='category')", '["u", "v"]'), ("pandas.Series([], dtype=int)", "[]"),
            ("pandas.Series([1, 2], dtype='Int64')", "[1, 2]"),
            ("pandas.Series(['x', 'x']).value_counts()", '{"x": 2}'),
            (self.FRAME, '[%s, {"a": 2, "b": null, "c": 1.0, "d": false}, {"a": 3, "b": "z", "c": 2.0, "d": true}]'
             % first),
            (self.FRAME + "[:1]", "[%s]" % first), (self.FRAME + "[:0]", "[]"),
            (self.FRAME + ".query('a > 2')[['a']]", '[{"index": 2, "a": 3}]'),
            (self.FRAME + ".groupby('d')[['a']].sum()", '[{"d": false, "a": 2}, {"d": true, "a": 4}]'),
            (self.FRAME + ".groupby(['d', 'c']).a.sum().to_frame()[:1]", '[{"d": false, "c": 1.0, "a": 2}]'),
            ("pandas.DataFrame({'a': [1]}, index=['r'])", '[{"index": "r", "a": 1}]'),
        ]
        self.assertEqual(list(zip(dict(expected), self.json(*dict(expected)))), expected)

    def test_what_json_cannot_carry(self):
        codes = [
            "numpy.float64('nan')", "numpy.array([1, numpy.inf])", "numpy.datetime64('2026-01-01')",
            "numpy.complex128(1j)", "numpy.longdouble(1)", "numpy.array([1], dtype='M8[D]')", "numpy.zeros((1, 1, 1))",
            "numpy.array(1)", "numpy.array([(1, 2)], dtype='i4,i4')", "numpy.arange(1001)", "numpy.zeros((1001, 0))",
            "numpy.ma.array([1])", "numpy.float64", "(lambda x: x.fill(x) or x)(numpy.empty(1, dtype=object))",
            "pandas.Series([1, None])", "pandas.Series([1, 2], [5, 6])", "pandas.Series([1, 2], ['a', 'a'])",
            "pandas.Series([pandas.Timestamp(0)])", "pandas.Series([1, None], dtype='Int64')",
            "pandas.NaT", "pandas.NA",
            "pandas.Series(range(1001))", "pandas.DataFrame([[1, 2]])", "pandas.DataFrame({'a': [1, None]})",
            "pandas.DataFrame([[1, 2]], columns=['a', 'a'])", "pandas.DataFrame(index=[0, 1])", "pandas.Index([1])",
            "pandas.DataFrame({'a': [1]}, index=pandas.Index(['r'], name='a'))",
            "pandas.DataFrame({'a': range(501), 'b': 0})",
        ]
        self.assertEqual([code for code, text in zip(codes, self.json(*codes)) if text is not None], [])

    def test_subclasses_and_impostors_are_not_json(self):
        body = ("    def __getattribute__(self, name): print('called'); raise SystemExit(3)\n"
                "    __repr__ = lambda self: 'mine'\n")
        for base, arguments in ("numpy.float64", "1"), ("pandas.DataFrame", "{'a': [1]}"), ("object", ""):
            for name in "float64", "DataFrame":
                with self.subTest((base, name)):
                    result = run("import numpy, pandas, json\nclass %s(%s):\n%s[%s(%s)]"
                                 % (name, base, body, name, arguments))
                    self.assertEqual((result.out, result.frames), ("", [{"type": "value", "repr": "[mine]"}]))
        result = run("import sys\nsys.modules['numpy'] = None\nsys.modules['pandas'] = 5\n[object]")
        self.assertEqual(result.only("value")["repr"], "[<class 'object'>]")
        result = run("import pandas\npandas.DataFrame.reset_index = None\npandas.DataFrame({'a': [1]}, ['r'])")
        self.assertEqual(result.frames[-1], {"type": "value", "repr": "   a\nr  1"})

    def test_display(self):
        data, = self.shown("import pandas\ndisplay(pandas.DataFrame({'a': [1]}))")
        self.assertEqual((list(data), data["text/plain"]), (["text/html", "text/plain"], "   a\n0  1"))


@needs("PIL", must=True)
class Pillow(DisplayCase):
    def test_image(self):
        for mode in "RGB", "RGBA", "L", "1", "P":
            data, = self.shown("from PIL import Image\nImage.new(%r, (30, 20))" % mode, other=["value"])
            self.assertEqual((self.size(data), list(data)), ((30, 20), ["image/png"]))

    def test_large_image(self):
        data, = self.shown("import os\nfrom PIL import Image\n"
                           "display(Image.frombytes('RGB', (1500, 1500), os.urandom(6750000)))")
        width, height = self.size(data)
        self.assertTrue(600 < width == height < 1500)
        self.assertRegex(data["text/plain"], r"\n\[made smaller, to %d by %d pixels, from 6.8 MB\]$" % (width, width))


@needs("IPython")
class IPythonDisplay(DisplayCase):
    def test_classes(self):
        result = run("""
            from IPython.display import HTML, JSON, SVG, Image, Markdown, clear_output, display, update_display
            from IPython.display import DisplayHandle, display_html, publish_display_data
            clear_output(); clear_output(wait=True)
            display(HTML('<b>'), metadata={'a': 1})
            display(JSON({'a': [1]}))
            display(SVG('<svg></svg>'))
            display(Image(data=b'\\x89PNG\\r\\n\\x1a\\nx' + b'x' * 50, format='png'))
            display(Markdown('# m'), 5)
            display_html('<i>', raw=True)
            publish_display_data({'text/html': '<u>'})
            handle = display('one', display_id='x'); handle.update('two'); update_display('three', display_id='x')
            DisplayHandle('y').display(HTML('<s>'))
            """)
        self.assertEqual((result.out, result.err, result.code), ("# m\n5\n'one'\n'two'\n'three'\n", "", 0))
        data = self.displays(result)
        for form in data:
            form.pop("text/plain", None)
        self.assertIn("<svg", data.pop(2)["image/svg+xml"])
        self.assertEqual(data[:2] + data[3:], [{"text/html": "<b>"}, {"application/json": {"a": [1]}},
                                               {"text/html": "<i>"}, {"text/html": "<u>"}, {"text/html": "<s>"}])
        self.assertEqual(base64.b64decode(data[2]["image/png"])[:8], PNG)

    def test_last_value(self):
        self.assertEqual(self.shown("from IPython.core.display import HTML\nHTML('<b>')", other=["value"]),
                         [{"text/html": "<b>"}])
        self.assertEqual(self.shown("import IPython.display as d\n"
                                    "d.Markdown('# m')", other=["value"]), [{"text/plain": "# m"}])

    def test_with_pyplot(self):
        self.assertEqual(len(self.shown(OPEN + "from IPython.display import display\nplt.ion()\ndisplay(plt.gcf())\n"
                                               "None")), 1)


@needs("plotly")
class Plotly(DisplayCase):
    def test_figure(self):
        code = "import plotly.graph_objects as go\nf = go.Figure(go.Scatter(y=[1, 2]))\n"
        for last, other in ("f.show()", []), ("display(f)", []), ("f", ["value"]):
            data, = self.shown(code + last, other=other)
            self.assertIn("<div", data["text/html"])
            self.assertLess(len(data["text/html"]), 20000)
        data, = self.shown(code + "f = go.Figure(go.Scatter(text=['x' * 30] * 100000))\nf.show()")
        self.assertIn("[text/html left out: ", data["text/plain"])


if __name__ == "__main__":
    unittest.main()
