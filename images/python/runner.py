"""The Python runner: one program, run once, inside a sandbox.

The agent (process 1 of the sandbox) starts it, through the byte-compiled copy in `__pycache__`, as

    python3 -I -S -B -u -X utf8 -c "import sys; sys.path.insert(0, '/run/forge/python'); import runner; runner.main(3)"

with the program's stdin, stdout and stderr on descriptors 0, 1 and 2 and one end of a stream socketpair on the one that
`main` is given. `-u` takes every write to the pipe at once, so that `os._exit`, a crash or a kill loses nothing.

Protocol on that descriptor. Agent to runner, exactly one job (integers big-endian, texts in UTF-8):

    u8 flags (bit 0: stdin was given) | u32 length of name | name | u32 length of code | code

The name is that of the program's file, which becomes its `__file__`, or one in angle brackets: then it has none.

Runner to agent, any number of frames, each `u32 header | JSON in UTF-8`. Bits 0 to 30 of the header are the length, at
most 4 MiB. Bit 31 asks for an acknowledgement: the agent passes on all that the program has written to stdout and
stderr so far, then the frame, then it writes one byte 0x06 to the runner, which has waited for it. The frames are:

    {"type": "value", "json": <the value, when JSON can carry it without loss>, "repr": "..."}
    {"type": "error", "name": "...", "message": "...", "traceback": "..."}
    {"type": "display", "data": {<mime type>: <text, base64 of an image, or any JSON for application/json>}}

The value is that of the last statement when it is an expression; None is no value, and a semicolon after the expression
suppresses it, as in Jupyter. A `__repr__` that raises ends the program with an error. The value or the error is sent
when the code has ended: before threads are waited for and before atexit functions run, which is when Python prints a
traceback. The process ends with the program's exit code, 130 after an uncaught KeyboardInterrupt, and 125 when the
runner itself failed.

JSON carries values of the built-in types that it has, and of numpy and pandas what holds up to 1000 of them (beyond
that their own printing summarises): a numpy scalar, an array of one or two dimensions as lists, a Series as list, a
DataFrame as list of records, that is one object to a row. Labels of rows other than 0, 1, 2, ... make a Series an
object and precede the columns of a DataFrame, under the name that `reset_index` gives them. What holds anything that
JSON has not (NaN, NaT, NA, infinity, a date, a label of a column that is no text) and all subclasses have no JSON.

Displays are what the program shows (matplotlib's figures, `display(object)`, a value with rich forms): see display.py,
which is read from beside this file when something rich happens. All of them ask to be acknowledged, so that their place
in the output is exact, and they precede the value or the error; only threads and atexit functions can send any later.

What it deliberately does not do: it is no security boundary (the program can do anything in its own process), it knows
no limits (time, memory and output are the agent's), it does not capture output, and it writes nothing to stderr that
Python would not write; an uncaught exception travels in its frame only. It does not tear the interpreter down: threads
are waited for, atexit functions and finalizers run, Python's and C's streams are flushed, then the process ends. Exit
handlers of native libraries do not run.

Nothing is imported on the way to a successful end but modules built into the interpreter: an import of any other costs
as much as the rest of the run.
"""

import atexit
import builtins
import gc
import io
import posix
import sys
from _frozen_importlib_external import SourceFileLoader
from _imp import _fix_co_filename
from _signal import SIG_DFL, SIGINT, default_int_handler, signal
from _thread import allocate_lock, get_ident, start_new_thread
from gc import collect, get_objects
from io import BufferedRandom, BufferedWriter, StringIO, TextIOWrapper
from posix import _exit, close, fstat, getpid, read, write
from sys import getrecursionlimit, setprofile, setrecursionlimit, settrace

# The program may replace builtins and attributes of modules. The functions below find their builtins in this copy, and
# what they need of modules is bound here.
__builtins__ = vars(builtins).copy()
_modules = sys.modules
_real_open, _real_input = builtins.open, builtins.input
_run_exit_functions, _show_exception = atexit._run_exitfuncs, sys.__excepthook__
_name_of = type.__dict__["__name__"].__get__
_with_traceback, _traceback_of = BaseException.with_traceback, BaseException.__traceback__.__get__
_set_cause, _cause_of = BaseException.__cause__.__set__, BaseException.__cause__.__get__
_set_context, _context_of = BaseException.__context__.__set__, BaseException.__context__.__get__
_Module, _Group = type(sys), getattr(builtins, "BaseExceptionGroup", ())
_members_of = _Group and _Group.exceptions.__get__
_this = _modules[__name__]
_own_spaces = [globals()]  # of the runner's modules

KIB = 1024
MAX_JSON = MAX_REPR = KIB * KIB
MAX_TRACEBACK = 256 * KIB
MAX_MESSAGE = 64 * KIB
MAX_DEPTH = 64
MAX_CHAIN = 200  # exceptions
MAX_CELLS = 1000  # of an array or a data frame as JSON
NO_STDIN = "no standard input: pass the text as `stdin`"
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
ACKNOWLEDGE = 1 << 31
PATIENCE = 5  # seconds that the last frame waits for one that nobody reads or acknowledges
# Types without rich forms, by identity: the hash of a class may be the program's.
_PLAIN = frozenset(map(id, (int, str, float, bool, list, tuple, dict, bytes, set, frozenset, complex, range)))

_OWN_DIRECTORY = __file__.rpartition("/")[0]
_standard_path = []  # sys.path of the standard library alone
_NUMPY_SCALARS = frozenset((
    "bool", "bool_", "int8", "int16", "int32", "int64", "longlong", "uint8", "uint16", "uint32", "uint64", "ulonglong",
    "float16", "float32", "float64", "str_"))


# -- the channel to the agent ------------------------------------------------------------------------------------------

class _Channel:
    """The descriptor. Frames are dropped silently when the program closed it, and in forks of the runner."""

    def __init__(self, fd):
        posix.set_inheritable(fd, False)
        self.fd, self.pid, self.identity = fd, getpid(), self._stat(fd)
        self.lock, self.holder, self.acknowledging = allocate_lock(), None, False
        posix.register_at_fork(after_in_child=self._forked)

    @staticmethod
    def _stat(fd):
        try:
            status = fstat(fd)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _is_open(self):
        # The program may have closed the descriptor and opened a file of its own that got the same number.
        return self.identity is not None and self._stat(self.fd) == self.identity

    def _forked(self):
        if self._is_open():
            close(self.fd)
        self.identity, self.holder, self.lock = None, None, allocate_lock()

    def is_ours(self):
        """Whether this is the process that the agent started, not a fork of it."""
        return getpid() == self.pid

    def _read(self, data, size):
        while len(data) < size:
            more = read(self.fd, 256 * KIB)
            if not more:
                raise EOFError("the agent sent no whole job")
            data += more
        return int.from_bytes(data[size - 4:size], "big")

    def job(self):
        """Name and code of the program, and whether it has a stdin."""
        data = bytearray()
        start = 9 + self._read(data, 5)
        end = start + self._read(data, start)
        self._read(data, end)
        return data[5:start - 4].decode("utf-8", "replace"), bytes(data[start:end]), bool(data[0] & 1)

    def can_send(self):
        """Whether a frame would go out. A finalizer that runs while its thread sends one cannot send another."""
        return self.is_ours() and self._is_open() and self.holder != get_ident()

    @staticmethod
    def _frame(flags, kind, fields):
        encoded = b"".join([b',"%s":%s' % field for field in fields if field[1] is not None])
        payload = b'{"type":"%s"%s}' % (kind, encoded)
        return memoryview((flags | len(payload)).to_bytes(4, "big") + payload)

    def _write(self, data):
        try:
            while data:
                data = data[write(self.fd, data):]
        except OSError:
            self.identity = None
        except BaseException:  # of a handler: nothing must follow a torn frame
            self.identity = None
            raise

    def send(self, kind, *fields):
        """Sends a frame of encoded fields, those that are None left out. To be called undisturbed."""
        if not self.can_send():
            return
        data = self._frame(0, kind, fields)
        if not self.lock.acquire(True, PATIENCE):
            if self.acknowledging:  # the channel is free to write to
                self._write(data)
            return
        try:
            self.holder = get_ident()
            self._write(data)
        finally:
            self.holder = None
            self.lock.release()

    def send_in_order(self, kind, *fields):
        """Sends a frame and waits until the agent has taken it and all output before it; whether it could be sent.

        A thread does it: handlers of signals run in the main thread only, so that none can tear the frame, and one that
        raises ends the wait alone.
        """
        if not self.can_send():
            return False
        work = self._frame(ACKNOWLEDGE, kind, fields), allocate_lock()
        work[1].acquire()
        try:
            start_new_thread(self._send_in_order, work)
        except RuntimeError:  # no more threads
            _undisturbed(self._send_in_order, *work)
        while not work[1].acquire(True, 1):
            if not self.is_ours():  # a handler has forked meanwhile
                return False
        return self.identity is not None

    def _send_in_order(self, data, done):
        try:
            with self.lock:
                self.holder = get_ident()
                try:
                    if self._is_open():
                        self._write(data)
                        self.acknowledging = True
                        if self.identity and not read(self.fd, 1):
                            self.identity = None
                finally:
                    self.holder, self.acknowledging = None, False
        except BaseException:  # the peer is gone, or there is no memory
            self.identity = None
        finally:
            done.release()

    def shut(self):
        """Lets a frame that a thread is sending go out whole, and no other after it."""
        if self.is_ours():
            self.lock.acquire(True, PATIENCE)


def _undisturbed(function, *arguments):
    """Calls the function. An interrupt meanwhile comes too late: the code has ended, and no frame is torn."""
    try:
        previous = signal(SIGINT, lambda *_: None)
    except ValueError:  # only the main thread is ever interrupted
        return function(*arguments)
    try:
        return function(*arguments)
    finally:
        signal(SIGINT, SIG_DFL if previous is None else previous)


# -- text and JSON, bounded --------------------------------------------------------------------------------------------

_CONTROL = {code: "\\u%04x" % code for code in range(32)}


def _quote(text):
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"%s"' % (text if text.isprintable() else text.translate(_CONTROL))


def _cut(text, limit):
    """The text, or its head and tail around a note, in about `limit` characters."""
    if len(text) <= limit:
        return text
    half = max(limit - 50, 0) // 2
    return "%s\n[... %d characters left out ...]\n%s" % (text[:half], len(text) - 2 * half, text[len(text) - half:])


def _bounded(text, limit):
    """The text as a JSON string of at most `limit` bytes."""
    text, size = str.__str__(text), limit  # plain text, no subclass with manners of its own
    while True:
        plain = _cut(text, size).encode("utf-8", "backslashreplace").decode()  # lone surrogates have no UTF-8 form
        data = _quote(plain).encode()
        if len(data) <= limit:
            return data
        size = min(size * limit // len(data), size - 64)


def _json(value, depth, budget):
    """JSON of a value that it can carry without loss; ValueError for all others. Runs none of the program's code.

    But for what the program has put into pandas, an index class of its own say: such code fails without consequence.
    """
    kind = type(value)
    cost = 3
    if kind is dict and depth < MAX_DEPTH:
        for key in value:
            if type(key) is not str:
                raise ValueError("a key that is no text")
        text = "{%s}" % ",".join(["%s:%s" % (_json(key, 0, budget), _json(item, depth + 1, budget))
                                  for key, item in value.items()])
    elif (kind is list or kind is tuple) and depth < MAX_DEPTH:
        text = "[%s]" % ",".join([_json(item, depth + 1, budget) for item in value])
    else:
        if kind is str and len(value) <= MAX_JSON:
            text = _quote(value)
        elif kind is int and -1 << 63 <= value < 1 << 64 or kind is float and value - value == 0:  # that is, finite
            text = repr(value)
        elif value is None or kind is bool:
            text = "null" if value is None else "true" if value else "false"
        else:
            return _json(_from_library(value, kind), depth, budget)
        cost = len(text) + 1
    # What is shared is charged each time: this ends structures that are small in memory and huge as text.
    budget[0] -= cost
    if budget[0] < 0:
        raise ValueError("too big")
    return text


def _from_library(value, kind):
    """The contents of a small value of numpy or pandas in built-in types; ValueError for all others."""
    name = _name_of(kind)
    try:
        for library, convert in ("numpy", _from_numpy), ("pandas", _from_pandas):
            # That class itself, and none of the program's that is called so.
            if library in _modules and vars(_modules[library]).get(name) is kind:
                return convert(value, name)
    except Exception:  # of what the program has put into it
        pass
    raise ValueError("not JSON")


def _from_numpy(value, name):
    if name in _NUMPY_SCALARS:
        return value.item()
    if (name != "ndarray" or value.ndim not in (1, 2) or max(value.size, *value.shape) > MAX_CELLS
            or value.dtype.kind not in "biufUO"):
        raise ValueError("not JSON")
    return value.tolist()


def _from_pandas(value, name):
    if name not in ("Series", "DataFrame") or max(value.size, len(value)) > MAX_CELLS:
        raise ValueError("not JSON")
    numbered = value.index.name is None and value.index.tolist() == list(range(len(value)))
    if name == "Series" and numbered:
        return value.tolist()
    value = value if name == "Series" or numbered else value.reset_index()
    labels = value.index if name == "Series" else value.columns
    if not labels.is_unique or len(value) and not len(labels):
        raise ValueError("not JSON")
    if name == "Series":
        return dict(zip(labels.tolist(), value.tolist()))
    columns = [value.iloc[:, place].tolist() for place in range(len(labels))]
    return [dict(zip(labels.tolist(), row)) for row in zip(*columns)]


def _text(value):
    """What repr gives, for what is shown: a `__repr__` that raises an Exception takes nothing else away."""
    try:
        return repr(value)
    except Exception as error:
        return "<%s object: repr raised %s: %s>" % (_name_of(type(value)), _name_of(type(error)), _message(error))


def _describe(value):
    """The fields of a value frame. What `__repr__` raises ends the program, as at Python's prompt."""
    text = repr(value)
    try:
        encoded = _json(value, 0, [MAX_JSON + 1]).encode()  # fails on lone surrogates
    except (ValueError, MemoryError, RuntimeError):  # RuntimeError: a thread changes a dict meanwhile
        encoded = b""
    return (b"json", encoded if 0 < len(encoded) <= MAX_JSON else None), (b"repr", _bounded(text, MAX_REPR))


# -- compiling ---------------------------------------------------------------------------------------------------------

def _lines(source):
    """Lines as the compiler counts them, which is not how str.splitlines does."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line + "\n" for line in (lines if lines[-1] else lines[:-1])]


def _decode(name, code):
    """The source as text, and a SyntaxError or None. It is UTF-8 as it comes, whatever a coding comment says."""
    code = code[3:] if code[:3] == b"\xef\xbb\xbf" else code
    try:
        source = code.decode()
        before, found, _ = source.partition("\0")
        problem = found and "source code cannot contain null bytes"
    except UnicodeDecodeError as error:
        source, before = code.decode("utf-8", "replace"), code[:error.start].decode()
        problem = "(unicode error) %s" % error
    return source, SyntaxError(problem, (name, len(_lines(before + "?")), None, None)) if problem else None


def _compile(name, source, expression, statement):
    try:
        tree = compile(source, name, "exec", ONLY_AST, True)
        body, last = tree.body, None
        if body and type(body[-1]) is statement and not _is_suppressed(source, body[-1]):
            expression.body = body.pop().value
            last = compile(expression, name, "eval", 0, True)
        return compile(tree, name, "exec", 0, True), last
    except RecursionError:
        # The compiler alone goes deeper than the conversion to a tree and back. Such a program reports no value.
        return compile(source, name, "exec", 0, True), None


def _is_suppressed(source, statement):
    # Only blanks, brackets, semicolons and comments can follow the last expression.
    if ";" not in source:
        return False
    lines = source.encode().splitlines()[statement.end_lineno - 1:]
    lines[0] = lines[0][statement.end_col_offset:]
    return any(b";" in line.partition(b"#")[0] for line in lines)


# -- exceptions --------------------------------------------------------------------------------------------------------

def _message(error):
    try:
        return str.__str__(str(error))
    except BaseException:
        return "<exception str() failed>"  # what the interpreter prints


def _skip_own(traceback):
    while traceback is not None and any([traceback.tb_frame.f_globals is space for space in _own_spaces]):
        traceback = traceback.tb_next
    return traceback


def _strip(error):
    """Takes the runner's frames out of an exception and of all that it refers to."""
    seen, todo = set(), [error]
    while todo:
        error = todo.pop()
        if id(error) in seen or not issubclass(type(error), BaseException):
            continue
        if len(seen) == MAX_CHAIN:  # the interpreter would print nothing at all for want of stack
            _set_cause(error, None)
            _set_context(error, Exception("[... earlier exceptions left out ...]"))
        seen.add(id(error))
        first = here = _skip_own(_traceback_of(error))
        _with_traceback(error, first)
        while here is not None:
            here.tb_next = here = _skip_own(here.tb_next)
        todo += _cause_of(error), _context_of(error)
        if issubclass(type(error), _Group):
            todo += _members_of(error)


class _Collector:
    """Stands for stderr while the interpreter prints an exception; what other threads print goes to the real one."""

    def __init__(self, stderr):
        self.parts, self.stderr, self.owner = [], stderr, get_ident()

    def write(self, text):
        if get_ident() != self.owner:
            return self.stderr.write(text)
        self.parts.append(_cut(text, MAX_TRACEBACK))

    def flush(self):
        pass


def _io_with(name, source):
    """The io module, with a file `name`: this is where the interpreter, up to 3.12, reads the lines of a traceback."""
    module, ours = _Module("io"), []

    def open(path, *arguments):
        file = _real_open("/dev/null" if path == name else path, *arguments)  # its descriptor is looked at
        if path == name:
            ours[:] = [file]
        return file

    def wrapper(file, *arguments):
        return StringIO(source, newline=None) if file in ours else TextIOWrapper(file, *arguments)

    vars(module).update(vars(io), open=open, TextIOWrapper=wrapper)
    return module


def _format(error, program):
    """What the interpreter prints for the exception: exact in each version, and no import is needed up to 3.12."""
    missing = object()
    space = vars(sys)
    path, stderr, old_io = space.get("path", missing), space.get("stderr", missing), _modules.get("io", missing)
    collector, saved = _Collector(stderr), vars(builtins).copy()
    name = program.name
    try:
        if sys.version_info < (3, 13):
            name += "\x1f"  # names in angle brackets are taken for names of no files
            _modules["io"] = _io_with(name, program.source)
        # 3.13 imports traceback: not a file of the program that is called so, and with sound builtins.
        sys.path = _standard_path
        vars(builtins).update(__builtins__)
        sys.stderr = collector
        program.rename(name)
        _show_exception(type(error), error, _traceback_of(error))
    finally:
        program.rename(program.name)
        vars(builtins).update(saved)
        for place, key, value in (_modules, "io", old_io), (space, "path", path), (space, "stderr", stderr):
            if value is missing:
                place.pop(key, None)
            else:
                place[key] = value
    return "".join(collector.parts).replace(name, program.name)


def _report(error, program):
    """Reports an uncaught exception; returns the exit code."""
    setrecursionlimit(max(getrecursionlimit(), 1000))
    _strip(error)
    status = 130 if issubclass(type(error), KeyboardInterrupt) else 1
    hook = getattr(sys, "excepthook", _show_exception)
    if program.channel.is_ours() or hook is _show_exception:
        name, message = _name_of(type(error)), _message(error)
        try:
            text = _format(error, program)
        except BaseException:
            text = ""
        if name + ":" not in text and name + "\n" not in text:
            text += "%s: %s\n" % (name, message)  # the interpreter gave up: there are exceptions that it cannot print
        if not message and not program.has_stdin and name in ("EOFError", "BdbQuit"):
            message = NO_STDIN  # getpass and pdb say nothing
        if program.channel.is_ours():
            program.channel.send(
                b"error", (b"name", _bounded(name, KIB)), (b"message", _bounded(message, MAX_MESSAGE)),
                (b"traceback", _bounded(text, MAX_TRACEBACK)))
        else:
            _print_error(text, "")
    if hook is not _show_exception:
        try:
            hook(type(error), error, _traceback_of(error))
        except SystemExit as wish:
            status = _exit_code(wish)
        except BaseException as problem:
            _show_ignored("Error in sys.excepthook:", problem)
    return status


def _show_ignored(title, error):
    _strip(error)
    _print_error(title)
    _show_exception(type(error), error, _traceback_of(error))


def _note(title, error, program):
    """Tells of an exception that does not end the program."""
    _strip(error)
    try:
        text = _format(error, program)
    except Exception:
        text = "%s: %s\n" % (_name_of(type(error)), _message(error))
    _print_error(title + "\n" + text, "")


def _print_error(text, end="\n"):
    try:
        sys.stderr.write("%s%s" % (text, end))
    except BaseException:  # no stderr, or one of the program's that fails
        pass


def _exit_code(error):
    """What the interpreter makes of a SystemExit."""
    code = getattr(error, "code", error)
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255 if -1 << 63 <= code < 1 << 63 else 255
    _print_error(code)
    return 1


# -- what the program finds --------------------------------------------------------------------------------------------

class _Imports:
    """First on sys.meta_path: does late what costs time and is rarely needed.

    The `site` module reads the .pth files of installed packages. Their directories are on sys.path from the start, so
    that it is soon enough to run it before the first import that can lead there.
    """

    SEE_PACKAGES = frozenset(("distutils", "importlib.metadata", "multiprocessing", "pkgutil", "pydoc", "runpy"))

    def __init__(self, directory):
        self.directory, self.site_pending = directory, False
        self.after = {"site": self.complete_site}  # name of a module: function to call when it has been imported

    def find_spec(self, name, path=None, target=None):
        if self.site_pending and (name in self.SEE_PACKAGES or path is None and name not in sys.stdlib_module_names):
            self.complete_site()
        if name in self.after:
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target) if finder is not self else None
                if spec is not None:
                    spec.loader = _Then(spec.loader, self.after[name])
                    return spec
        return None

    def complete_site(self, _=None):
        if not self.site_pending:
            return
        self.site_pending = False
        import site
        # Python does this before it puts the program's directory first: no file there is taken for sitecustomize.
        mine = sys.path[:1] == [self.directory]
        sys.path[:] = sys.path[mine:]
        try:
            site.main()
        finally:
            sys.path[:0] = [self.directory] * mine


class _Then:
    """A module's own loader, followed by a function."""

    def __init__(self, loader, function):
        self.loader, self.function = loader, function

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.function(module)


class _Late:
    """copyright, credits or license. They need site, which puts the real ones in their places."""

    def __init__(self, name, imports):
        self._name, self._imports = name, imports

    def _real(self):
        self._imports.complete_site()
        return vars(builtins)[self._name]

    def __repr__(self):
        return repr(self._real())

    def __call__(self):
        return self._real()()


def _exists(path):
    try:
        return bool(posix.stat(path))
    except OSError:
        return False


def _package_directories():
    """What site.getsitepackages() gives, where that is plain to see; else None."""
    here, library = sys.executable.rpartition("/")[0], "%s/lib/python%d.%d" % (sys.prefix, *sys.version_info[:2])
    if sys.version_info < (3, 11) or not here or sys.prefix != sys.exec_prefix or sys.platlibdir != "lib":
        return None  # up to 3.10 site is not frozen, and imported late it might be a file of the program
    if _exists(here + "/pyvenv.cfg") or _exists(here.rpartition("/")[0] + "/pyvenv.cfg"):
        return None
    if library[:9] == "/usr/lib/" and _exists("/usr/lib/python3/dist-packages"):  # Debian and its kin
        names = ["/usr/local/lib" + library[8:], "/usr/lib/python3", library]
        return [name + "/dist-packages" for name in names if _exists(name + "/dist-packages")]
    return [library + "/site-packages"] if _exists(library + "/site-packages") else None


def _set_up_packages(imports):
    imports.site_pending = True
    directories = _package_directories()
    if directories is None:
        imports.complete_site()
        return
    from _sitebuiltins import Quitter, _Helper
    sys.path += directories
    builtins.exit, builtins.quit = [Quitter(name, "Ctrl-D (i.e. EOF)") for name in ("exit", "quit")]
    builtins.help = _Helper()
    builtins.copyright, builtins.credits, builtins.license = [
        _Late(name, imports) for name in ("copyright", "credits", "license")]


def _without_stdin():
    """Says so at once where the program would read it."""
    stdin = sys.stdin

    def input(prompt="", /):
        try:
            return _real_input(prompt)
        except EOFError:
            if sys.stdin is not stdin:
                raise
        raise EOFError(NO_STDIN)

    def breakpointhook(*arguments, **options):
        raise EOFError("no standard input for the debugger: pass its commands as `stdin`")

    input.__doc__, input.__module__, input.__qualname__ = _real_input.__doc__, "builtins", "input"
    builtins.input, sys.breakpointhook = input, breakpointhook


def _add_display(program, imports):
    """The program's own ways to show something: `display`, and the libraries that have theirs."""

    def display(*objects, **options):
        """Shows objects in the richest form that they have, as in Jupyter."""
        return program.displays().display(*objects, **options)

    def adapt(method):
        def adapt_module(module):
            try:
                getattr(program.displays(), method)(module)
            except Exception as error:
                _note("What this library shows will not be seen:", error, program)
        return adapt_module

    display.__module__, display.__qualname__ = "builtins", "display"
    builtins.display = display
    imports.after.update({
        "matplotlib": adapt("adapt_matplotlib"), "matplotlib.figure": adapt("adapt_figure"),
        "matplotlib.pyplot": adapt("adapt_pyplot"),
        "plotly.io": adapt("adapt_plotly"), "plotly.basedatatypes": adapt("adapt_plotly_figures"),
        "IPython.core.display": adapt("adapt_ipython"), "IPython.core.display_functions": adapt("adapt_ipython")})


class _Program:
    """The job, and what other modules need to know of it."""

    def __init__(self, channel, directory, templates, name, code, has_stdin):
        self.channel, self.directory, self.templates = channel, directory, templates
        self.name, self.has_stdin = name, has_stdin
        self.source, self.problem = _decode(name, code)
        self.codes, self.file = (), None
        self.shown = {}

    def displays(self):
        """What has been shown and the way to show more; the module is read when it is first needed."""
        if not self.shown:
            module = _Module("display")
            space = vars(module)
            space.update(__builtins__=__builtins__, __file__=_OWN_DIRECTORY + "/display.py")
            exec(SourceFileLoader("display", space["__file__"]).get_code("display"), space)
            _own_spaces.append(space)
            self.shown.setdefault(None, module.Displays(_this, self))  # threads may be here at once: one wins
        return self.shown[None]

    def compile(self):
        """The code of the program, and that of its last expression apart, or None."""
        if self.problem:
            raise self.problem
        try:
            self.codes = _compile(self.name, self.source, *self.templates)
        except SyntaxError as error:
            # What is found after parsing comes without its line: the compiler looks for a file of that name.
            if error.text is None and error.lineno and error.filename == self.name:
                error.text = "".join(_lines(self.source)[error.lineno - 1:error.lineno]) or None
            raise
        return self.codes

    def rename(self, name):
        """Changes the file name of all code of the program."""
        for code in self.codes:
            if code is not None:
                _fix_co_filename(code, name)

    def fill_linecache(self, linecache):
        """Gives traceback, warnings and inspect the source lines."""
        linecache.cache[self.name] = len(self.source), None, _lines(self.source), self.name

    def teach_spawn(self, spawn):
        """Lets children of multiprocessing that are no forks import the program, from a file without a name."""
        prepare, flags = spawn.get_preparation_data, spawn.util._args_from_interpreter_flags

        def get_preparation_data(name):
            data = prepare(name)
            file = getattr(_modules["__main__"], "__file__", None)
            if "init_main_from_name" not in data and (file is None or file == self.name):  # no file is there
                if self.file is None:
                    self.file = posix.memfd_create("main")
                    write(self.file, self.source.encode())
                data["init_main_from_path"] = "/proc/%d/fd/%d" % (getpid(), self.file)
            return data

        spawn.get_preparation_data = get_preparation_data
        # Children start as ordinary interpreters do, site included.
        spawn.util._args_from_interpreter_flags = lambda: [flag for flag in flags() if flag != "-S"]


# -- the run -----------------------------------------------------------------------------------------------------------

def main(fd):
    """Takes the job from descriptor `fd`, runs it and ends the process."""
    status = 125
    try:
        try:
            program = _prepare(_Channel(fd))
        except BaseException as error:
            _show_exception(type(error), error, _traceback_of(error))
            return
        status = 1
        try:
            status = _execute(program)
        except BaseException as error:  # an interrupt between two lines of the runner
            status = _undisturbed(_report, error, program)
        status = _finish(status, program.directory)
        program.channel.shut()
    finally:
        _exit(status)


def _prepare(channel):
    """All that can be done before the job is known comes first: a sandbox may be made ready ahead of its job."""
    try:
        directory = posix.getcwd()
    except OSError:
        directory = ""
    sys.path[:] = _standard_path[:] = [entry for entry in sys.path if entry != _OWN_DIRECTORY]
    sys.path_importer_cache.pop(_OWN_DIRECTORY, None)
    _modules.pop(__name__, None)
    imports = _Imports(directory)
    _set_up_packages(imports)
    sys.path.insert(0, directory)
    for stream in sys.stdout, sys.stderr:
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # print() can show any text
    signal(SIGINT, default_int_handler)
    # The first syntax tree of a process costs most of a millisecond.
    templates = compile("0", "", "eval", ONLY_AST, True), type(compile("0", "", "exec", ONLY_AST, True).body[0])
    gc.freeze()  # what exists now will not be looked at when the program's objects are collected

    program = _Program(channel, directory, templates, *channel.job())
    sys.argv = [program.name]
    imports.after.update({"linecache": program.fill_linecache, "multiprocessing.spawn": program.teach_spawn})
    _add_display(program, imports)
    if "linecache" in _modules:  # from 3.13 on, with the command line as its first entry
        _modules["linecache"].cache.clear()
        program.fill_linecache(_modules["linecache"])
    sys.meta_path.insert(0, imports)
    if not program.has_stdin:
        _without_stdin()
    return program


def _execute(program):
    """Runs the code and reports its value or exception; returns the exit code."""
    module = _Module("__main__")
    module.__loader__, module.__builtins__ = _modules["__main__"].__loader__, builtins
    if (program.name[:1], program.name[-1:]) != ("<", ">"):
        module.__file__ = program.name
    _modules["__main__"] = module
    space = vars(module)
    try:
        try:
            body, last = program.compile()
            exec(body, space)
            value = None if last is None else eval(last, space)
        finally:
            setprofile(None)  # the runner's own steps are nothing for the program's profiler or tracer
            settrace(None)
        if program.shown or value is not None and id(type(value)) not in _PLAIN:
            _show_rest(program, value)
        if value is not None and program.channel.is_ours():
            _undisturbed(program.channel.send, b"value", *_describe(value))
        return 0
    except SystemExit as error:
        _show_rest_after(error, program)
        return _exit_code(error)
    except BaseException as error:
        _show_rest_after(error, program)
        return _undisturbed(_report, error, program)


def _show_rest(program, value=None, seconds=None):
    """Shows the figures that are still open, and the rich forms of the last value."""
    if not program.channel.is_ours():
        return
    try:
        program.displays().finish(value, seconds)
    except Exception as error:
        _note("The output could not be shown in full:", error, program)


def _show_rest_after(error, program):
    """The same after an exception, which it neither replaces nor, when the program was interrupted, delays for long."""
    try:
        if program.shown:
            _show_rest(program, None, 1 if issubclass(type(error), KeyboardInterrupt) else None)
    except BaseException as problem:
        try:
            _note("The output could not be shown in full:", problem, program)
        except BaseException:
            pass


def _finish(status, directory):
    """What the interpreter does at the end, without its own teardown; returns the exit code."""
    threading = _modules.get("threading")
    if threading is not None:
        try:
            threading._shutdown()
        except BaseException as error:
            _show_ignored("Exception ignored in: %r" % (threading,), error)
    try:
        _run_exit_functions()
    except BaseException:  # up to 3.9 the last exception comes out here, printed already
        pass
    for name in "stdout", "stderr":
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            status = 120
            if name == "stdout":
                _show_ignored("Exception ignored in: %s" % object.__repr__(stream), error)
    del threading, stream
    _flush_files()
    native = _drop(directory)
    collect()
    if native:
        _flush_c_streams()
    return status


def _flush_files():
    """Writes out the files left open. Closing them is no substitute: a collection may begin with the lower layers."""
    objects, files = get_objects(), (TextIOWrapper, BufferedWriter, BufferedRandom)
    kinds = [kind for kind in set(map(type, objects)) if issubclass(kind, files)]
    for item in objects if kinds else ():
        if type(item) in kinds:
            try:
                item.flush()
            except BaseException:  # closed, or no longer writable
                pass


def _drop(directory):
    """Lets go of all that the program made, so that its finalizers run.

    Returns whether native code is loaded that is not of the standard library.
    """
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.excepthook, sys.path = _show_exception, _standard_path
    space = vars(builtins)
    space.update(__builtins__)
    for name in set(space) - set(__builtins__):
        del space[name]
    native = False
    for name, module in list(_modules.items()):
        file = vars(module).get("__file__") if type(module) is _Module else None
        if name == "__main__" or type(file) is str and directory and file.startswith(directory + "/"):
            _modules.pop(name, None)
        elif type(file) is str and file.endswith(".so"):
            native = native or name == "_ctypes" or "/lib-dynload/" not in file
    return native


def _flush_c_streams():
    """Ending without exit(3) leaves to us what native code has printed to stdio."""
    try:
        import _ctypes
        _ctypes.call_cdeclfunction(_ctypes.dlsym(_ctypes.dlopen(None, 0), "fflush"), (None,))
    except Exception:  # a Python without ctypes
        pass
