"""Rich output of the Python runner: what the program shows, as `display` frames.

runner.py reads this module when something rich happens: matplotlib, IPython.display or plotly is imported, `display` is
called, or the last value is of no built-in type. It is no module that the program can import, it imports nothing that
the program has not, and it starts nothing. There is one object of `Displays` to a run.

What is shown, and how:

- matplotlib: `plt.show()` sends every open figure in order of number and closes it, as Jupyter's backend does;
  `figure.show()` does so with one. Figures still open when the code ends are sent then, whatever ended it. A figure is
  drawn again only when it has changed since, or when `display(figure)` asks for it. An empty figure is sent as text.
  The default backend becomes agg, with any backend of the program's choice the same holds. `plt.pause()` only waits.
- `display(...)`, there without an import and the same as that of IPython.display: the forms that an object has by
  Jupyter's protocol (`_repr_mimebundle_`, `_repr_png_`, ..., `_ipython_display_`), in one frame with its text. Markdown
  and LaTeX replace a text that is a mere `<... object>`. What has no rich form is printed: its repr and a newline. In
  forks, and when the agent is gone, all is printed.
- The last value: its rich forms without the text, which is in the value frame.
- Updates (`display_id`, `update_display`) are new displays. `clear_output` does nothing: what was shown stays.
- plotly: `figure.show()` sends HTML that loads plotly.js from the network.

Bounds: one raster image (the first of png, jpeg, gif, webp) of 2.9 MB, each text form of 1 MiB, a frame of 4 MiB. An
image that is too large is drawn again with fewer dots or made smaller by PIL, when the program has imported it. What
does not fit is left out. The display's text/plain tells of both. Types other than those are left out silently, as in
any Jupyter front end that does not know them. A form that raises is told of on stderr, as IPython does.
"""

import sys

IMAGES = "image/png", "image/jpeg", "image/gif", "image/webp"
TEXTS = "image/svg+xml", "text/html"
METHODS = (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("image/svg+xml", "_repr_svg_"),
           ("text/html", "_repr_html_"), ("application/json", "_repr_json_"), ("text/markdown", "_repr_markdown_"),
           ("text/latex", "_repr_latex_"))
MAX_FRAME = 4 * 1024 * 1024 - 1024
MAX_TEXT = 1024 * 1024
MIN_TEXT = 64 * 1024  # what text/plain has for itself
MAX_IMAGE = 2_900_000
MAX_PIXELS = 16_000_000  # of a figure
MAX_LENGTH = 32_000  # pixels of it in one direction
TRIES = 6

_modules = sys.modules


class Handle:
    """What `display` returns for a display that has an id."""

    def __init__(self, displays, display_id):
        self._displays, self.display_id = displays, display_id

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, value, **options):
        self._displays.display(value, display_id=self.display_id, **options)

    update = display


_Method = type(Handle(None, None).display)


class Displays:
    def __init__(self, runner, program):
        self.runner, self.program, self.channel = runner, program, program.channel
        self.figure_class, self.open_figures = None, None  # of matplotlib
        self.sent = {}  # id of a figure that was sent: a weak reference to it
        self.ids = 0

    # -- what the program calls ----------------------------------------------------------------------------------------

    def display(self, *values, include=None, exclude=None, raw=False, display_id=None, **_):
        for value in values:
            if raw:
                self.publish(value)
            else:
                self._show(value, include, exclude)
        if display_id is None or display_id is False:
            return None
        if display_id is True:
            self.ids += 1
            display_id = "display-%d" % self.ids
        return Handle(self, display_id)

    def update_display(self, value, *, display_id, **options):
        self.display(value, display_id=display_id, **options)

    def publish(self, data, *_, **__):
        """Shows a bundle of forms."""
        if not isinstance(data, dict):
            raise TypeError("data must be a dict, got: %r" % (data,))
        if data:
            self._send(dict(data), lambda: "")

    def clear_output(self, wait=False):
        pass

    def show(self, *_, **__):
        """Sends and closes the open figures of pyplot. All of them, then the first exception is raised."""
        first = None
        for manager in self._open():
            try:
                self._show_and_close(manager)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def finish(self, value, seconds):
        """The end of the code: shows what is open and the last value. `seconds`: when to begin with no more figures."""
        from time import monotonic
        started = monotonic()
        managers = self._open()
        for number, manager in enumerate(managers):
            if seconds is not None and monotonic() - started > seconds:
                self.runner._print_error("%d open figures are not shown: interrupted" % (len(managers) - number))
                break
            try:
                self._show_and_close(manager)
            except Exception as error:
                self.runner._note("Figure %s cannot be drawn:" % (manager.num,), error, self.program)
        if value is None or self._takes_over(value):
            return
        if self._is_figure(value):
            self._show_figure(value, again=False, text=False)
        else:
            self._send(self._forms(value), lambda: self.runner._text(value), is_value=True)

    # -- libraries -----------------------------------------------------------------------------------------------------

    def adapt_matplotlib(self, matplotlib):
        # Neither an environment variable nor a matplotlibrc has chosen one. Children of the program find agg by
        # themselves: an environment variable would name a module that they do not have, or be taken for a choice.
        if not isinstance(dict.__getitem__(matplotlib.rcParams, "backend"), str):
            matplotlib.rcParams["backend"] = "agg"

    def adapt_figure(self, module):
        self.figure_class = module.Figure

    def adapt_pyplot(self, pyplot):
        from matplotlib import _pylab_helpers, backend_bases

        def show(*arguments, **options):
            """Shows and closes all open figures."""
            self.show()

        def pause(interval):
            """Waits. The figures are shown when they are complete."""
            from time import sleep
            sleep(interval)

        def show_one(manager):
            """Shows and closes the figure."""
            self._show_and_close(manager, again=True)

        self.open_figures = _pylab_helpers.Gcf
        for function in show, pause:
            function.__module__, function.__qualname__ = pyplot.__name__, function.__name__
        pyplot.show, pyplot.pause, backend_bases.FigureManagerBase.show = show, pause, show_one

    def adapt_ipython(self, module):
        for name, function in (("display", self.display), ("update_display", self.update_display),
                               ("publish_display_data", self.publish), ("clear_output", self.clear_output)):
            if name in vars(module):
                setattr(module, name, function)

    def adapt_plotly(self, io):
        def show(figure, *_, **__):
            """Shows the figure."""
            if isinstance(figure, dict):
                html = io.to_html(figure, full_html=False, include_plotlyjs="cdn")
                self._send({"text/html": html}, lambda: self.runner._text(figure))
            else:
                self._show(figure, None, None)
        io.show = show

    @staticmethod
    def adapt_plotly_figures(module):
        del module.BaseFigure._ipython_display_  # prints the figure, or starts a browser

    # -- figures -------------------------------------------------------------------------------------------------------

    def _open(self):
        if self.open_figures is None:
            return []
        return sorted(list(self.open_figures.figs.values()), key=lambda manager: manager.num)

    def _is_figure(self, value):
        return self.figure_class is not None and issubclass(type(value), self.figure_class)

    def _show_and_close(self, manager, again=False):
        try:
            self._show_figure(manager.canvas.figure, again)
        finally:
            self.open_figures.destroy(manager.num)

    def _show_figure(self, figure, again, text=True):
        """Sends a figure, unless that was done already and it has not changed since."""
        from _weakref import ref
        sent = self.sent.get(id(figure))
        if not self.channel.can_send() or not again and sent is not None and sent() is figure and not figure.stale:
            return
        text = self.runner._text(figure) if text else ""
        if len(figure.get_children()) > 1:  # than its background
            image, note = self._draw(figure)
            self._send_forms({"image/png": image}, text, [note] if note else [])
        else:
            self._send_forms({}, text, [])
        figure.stale = False
        self.sent[id(figure)] = ref(figure, lambda _, key=id(figure): self.sent.pop(key, None))

    @staticmethod
    def _draw(figure):
        """The figure as PNG, cut to what is drawn, and a note when it has fewer dots per inch than it asks for."""
        from io import BytesIO
        box_of, asked = figure.get_tightbbox, figure.dpi

        def dpi_for(width, height):
            return min((MAX_PIXELS / max(width * height, 1e-9)) ** 0.5, MAX_LENGTH / max(width, height, 1e-9))

        def bounded_box(*arguments, **options):
            box = box_of(*arguments, **options)  # far outside of the figure something may be drawn
            return box if dpi <= dpi_for(box.width, box.height) else figure.bbox_inches

        dpi = min(asked, dpi_for(*figure.get_size_inches()))
        figure.get_tightbbox = bounded_box
        try:
            for _ in range(TRIES):
                file = BytesIO()
                figure.canvas.print_figure(file, format="png", dpi=dpi, bbox_inches="tight",
                                           facecolor=figure.get_facecolor(), edgecolor=figure.get_edgecolor())
                image = file.getvalue()
                if len(image) <= MAX_IMAGE:
                    break
                dpi *= max(0.9 * (MAX_IMAGE / len(image)) ** 0.5, 0.2)
        finally:
            del figure.get_tightbbox
        if dpi == asked:
            return image, None
        return image, "drawn at %d dots per inch, not %d: it would be too large" % (dpi, asked)

    # -- forms of objects ----------------------------------------------------------------------------------------------

    def _show(self, value, include, exclude):
        if self._is_figure(value) and self.channel.can_send():
            self._show_figure(value, again=True)
        elif not self._takes_over(value):
            self._send(self._forms(value, include, exclude), lambda: self.runner._text(value))

    @staticmethod
    def _method(value, name):
        try:
            if getattr(value, "_ipython_canary_method_should_not_exist_", None) is not None:
                return None  # it has whatever it is asked for
            method = getattr(value, name, None)
        except Exception:
            return None
        if issubclass(type(value), type) and type(method) is not _Method:
            return None  # the method of its instances
        return method if callable(method) else None

    def _call(self, value, name, **options):
        """Whether the method is there and has not raised, and its result."""
        method = self._method(value, name)
        if method is None:
            return False, None
        try:
            return True, method(**options)
        except NotImplementedError:
            pass
        except Exception as error:
            self.runner._note("%s of a %s object failed:" % (name, self.runner._name_of(type(value))), error,
                              self.program)
        return False, None

    def _takes_over(self, value):
        return self._call(value, "_ipython_display_")[0]

    def _forms(self, value, include=None, exclude=None):
        """All forms that the object has, by mime type."""
        def data_of(name, **options):
            data = self._call(value, name, **options)[1]
            return data[0] if isinstance(data, tuple) and len(data) == 2 else data  # the other is metadata

        def is_wanted(mime):
            return (not include or mime in include) and (not exclude or mime not in exclude)

        bundle = data_of("_repr_mimebundle_", include=include, exclude=exclude)
        forms = {mime: data for mime, data in bundle.items() if is_wanted(mime)} if isinstance(bundle, dict) else {}
        for mime, name in METHODS:
            has_image = mime in IMAGES and any([forms.get(image) is not None for image in IMAGES])
            if forms.get(mime) is None and not has_image and is_wanted(mime):
                forms[mime] = data_of(name)
        return forms

    # -- frames --------------------------------------------------------------------------------------------------------

    def _send(self, forms, make_text, is_value=False):
        """Sends forms and their text, or prints the text when it is all that there is."""
        text = forms.get("text/plain")
        if is_value or not isinstance(text, str):
            text = None
        marked = [forms[mime] for mime in ("text/markdown", "text/latex") if isinstance(forms.get(mime), str)]
        if text is None and (marked or not is_value):
            text = make_text()
        if marked and (not text or text.startswith("<") and text.endswith(">")):
            text = marked[0]
        elif is_value:
            text = ""
        if not self.channel.can_send() or not self._send_forms(forms, text, [], printed=not is_value):
            if text and not is_value:
                print(text)

    def _send_forms(self, forms, text, notes, printed=False):
        """Whether a frame was sent. A mere text is not when it can be `printed`."""
        fields, room = [], MAX_FRAME - MIN_TEXT
        for mime, encode in self._encoders(forms):
            data, note = encode(mime, forms[mime])
            if data and len(data) > room:
                data, note = None, "%s left out: no room for it beside the others" % mime
            if data:
                fields.append(b'"%s":%s' % (mime.encode(), data))
                room -= len(data) + len(mime) + 4
            if note:
                notes.append(note)
        if not fields and not notes and (printed or not text):
            return False
        text = "\n".join([text] * bool(text) + ["[%s]" % note for note in notes])
        if text:
            fields.append(b'"text/plain":%s' % self.runner._bounded(text, min(room + MIN_TEXT - 20, MAX_TEXT)))
        for name in "stdout", "stderr":
            try:
                getattr(sys, name).flush()
            except Exception:  # none, or one of the program's that fails
                pass
        return self.channel.send_in_order(b"display", (b"data", b"{%s}" % b",".join(fields)))

    def _encoders(self, forms):
        images = [mime for mime in IMAGES if isinstance(forms.get(mime), (bytes, bytearray, memoryview, str))]
        texts = [mime for mime in TEXTS if isinstance(forms.get(mime), str)]
        objects = [mime for mime in ("application/json",) if forms.get(mime) is not None]
        return ([(mime, self._encode_image) for mime in images[:1]] + [(mime, self._encode_text) for mime in texts]
                + [(mime, self._encode_json) for mime in objects])

    def _encode_image(self, mime, data):
        from binascii import a2b_base64, b2a_base64
        note = None
        try:
            data = a2b_base64(data) if isinstance(data, str) else bytes(data)
        except ValueError:
            return None, "%s left out: it is no base64" % mime
        if len(data) > MAX_IMAGE:
            size, (data, pixels) = len(data), self._shrink(data)
            if data is None:
                return None, "%s left out: %.1f MB, more than %.1f" % (mime, size / 1e6, MAX_IMAGE / 1e6)
            note = "made smaller, to %d by %d pixels, from %.1f MB" % (*pixels, size / 1e6)
        return data and b'"%s"' % b2a_base64(data, newline=False), note

    @staticmethod
    def _shrink(data):
        """The image with fewer pixels, and their numbers, or None twice."""
        library = _modules.get("PIL.Image")
        try:
            from io import BytesIO
            image = library.open(BytesIO(data))
            kind = image.format
            if kind == "GIF":  # it may move
                return None, None
            image = image.convert("RGBA") if image.mode == "P" else image
            for _ in range(TRIES):
                factor = max(0.9 * (MAX_IMAGE / len(data)) ** 0.5, 0.1)
                image = image.resize([max(int(length * factor), 1) for length in image.size], library.BICUBIC)
                file = BytesIO()
                image.save(file, kind)
                data = file.getvalue()
                if len(data) <= MAX_IMAGE:
                    return data, image.size
        except Exception:  # no PIL, or no image that it knows
            pass
        return None, None

    def _encode_text(self, mime, text):
        text = str.__str__(text)
        data = None
        if len(text) <= MAX_TEXT:
            data = self.runner._quote(text.encode("utf-8", "backslashreplace").decode()).encode()
        if data is None or len(data) > MAX_TEXT:
            return None, "%s left out: %.1f MiB, more than 1" % (mime, len(data or text) / MAX_TEXT)
        return data, None

    def _encode_json(self, mime, value):
        try:
            return self.runner._json(value, 0, [MAX_TEXT]).encode(), None
        except (ValueError, MemoryError, RuntimeError) as error:
            return None, "%s left out: %s" % (mime, "lone surrogates" if isinstance(error, UnicodeError) else error)
