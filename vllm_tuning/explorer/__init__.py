"""The explorer: sliders for the requests and the server, and the figures and flags that follow.

The only module that imports ipywidgets. Every control is an attribute, so that
``explorer.input_len.value = 512`` does what a hand does.
"""

import base64
from contextlib import contextmanager
from html import escape
from numbers import Integral, Real
from textwrap import shorten

import numpy as np
from ipywidgets import HTML, Button, Dropdown, HBox, Image, Layout, SelectionSlider, Text, VBox

from ..answer import Answer, Fit, find_optimum, model_of
from ..figures import pictures, png
from ..launch import serve_flags
from ..pool import Pool
from ..reading import DATA, sources_of
from ..report import answer_summary, recommendation, text_of, warnings
from ..units import GIB, InputError, is_known
from ..workload import Workload
from .utilization import at_utilization, launched

LENGTHS = sorted({round(2 ** (eighth / 8)) for eighth in range(161)})  # tokens, to 1 Mi
UTILIZATIONS = [percent / 100 for percent in range(5, 101)]
FACTORS = [2 ** (quarter / 4) for quarter in range(-8, 9)]  # times the recommended, 1/4 to 4
U = "gpu_memory_utilization"

ROW = Layout(flex_flow="row wrap", align_items="flex-start")


def _wide() -> dict:
    return {"style": {"description_width": "12em"}, "layout": Layout(width="30em")}


def _shows(name: str) -> str:
    """Whether a carried data set answers, or what else it shows."""
    try:
        model = model_of([name])
    except InputError:
        return "is not one fit"
    known = [each.upper() for each in ("k1", "k2") if is_known(getattr(model, each))]
    if len(known) == 2:
        cold = " for cold starts" * any(f.launch.cold_start for f in model.launches)
        pool = is_known(model.pool_at_zero_tokens)
        return "answers" + cold if pool else "shows the law, no pool"
    return f"shows one branch, {known[0]}" if known else "shows one level"


class Slider(SelectionSlider):
    """A slider over ``rungs`` that stands on a value between them, too, once that is ``put``.

    (In the browser a slider over numbers rounds its start to a step, and sends that back.)
    """

    def __init__(self, description, rungs, form, value):
        self.rungs, self.form = rungs, form
        super().__init__(
            options=self._labelled(rungs), value=value, description=description, **_wide()
        )

    def put(self, value) -> None:
        if value not in self.rungs:
            self.options = self._labelled(sorted((*self.rungs, value)))
        self.value = value

    def _labelled(self, values):
        return [(format(value, self.form), value) for value in values]


class Explorer(VBox):
    """Sliders that start at the given values; figures and answer of wherever they stand.

    launches: a carried data set, a launches.csv, a server log, a folder of either, or a list of
    those. input_len and output_len: tokens. utilization: a fraction; None or 0 is that of the
    launches. ``optimum`` is the answer shown, ``chosen`` the flags (mns, mnbt) off it; None where
    there is none (``reason``).
    """

    def __init__(self, launches, input_len, output_len, utilization=None):
        self.complaints, self._at_once, self._shown = [], False, None
        self.optimum: Answer | None = None
        self.chosen: tuple[int, int] | None = None
        self._several = {str(launches): launches} if isinstance(launches, list | tuple) else {}
        names = sorted(path.parent.name for path in DATA.glob("*/launches.csv"))
        self.data_set = Dropdown(
            options=[(f"{name}: {_shows(name)}", name) for name in names],
            value=launches if launches in names else None,
            description="data set",
            **_wide(),
        )
        self._named = self.data_set.value or names[0]  # the set last chosen out of the list
        self.path = Text(
            "" if launches in names else str(launches),
            description="or a path",
            placeholder="a launches.csv, a log, or a folder of either",
            continuous_update=False,
            **_wide(),
        )
        self.input_len = Slider("input (tokens)", LENGTHS, ",", 1024)
        self.output_len = Slider("output (tokens)", LENGTHS, ",", 256)
        self.mns = Slider("mns x recommended", FACTORS, ".3g", 1)
        self.mnbt = Slider("mnbt x recommended", FACTORS, ".3g", 1)
        self.utilization = Slider("utilization", UTILIZATIONS, ".3g", 0.9)
        self.reset_button = Button(
            description="Reset",
            tooltip="Everything back to the start",
            layout=Layout(margin="2px 2px 2px 12.5em"),
        )
        self.answer, self.warnings, self.notes = HTML(), HTML(), HTML()
        self.images = [Image(format="png", layout=Layout(max_width="100%")) for _ in range(3)]
        self._pictures = pictures()
        given = {"input_len": input_len, "output_len": output_len} | (
            {"utilization": utilization} if utilization else {}
        )
        self._start = {name: self._within(name, value) for name, value in given.items()}
        self._source = {"data_set": self.data_set.value, "path": self.path.value}
        controls = HBox(
            [
                VBox([self.input_len, self.output_len, self.utilization]),
                VBox([self.mns, self.mnbt]),
                VBox([self.data_set, self.path, self.reset_button]),
            ],
            layout=ROW,
        )
        super().__init__(
            [controls, self.answer, self.warnings, HBox(self.images, layout=ROW), self.notes]
        )
        self.data_set.observe(self._pick, "value")
        self.path.observe(self._load, "value")
        self.reset_button.on_click(self.reset)
        for slider in (self.input_len, self.output_len, self.mns, self.mnbt, self.utilization):
            slider.observe(self._update, "value")
        self._read()
        if self._model and utilization and self._fixed:
            self.complaints.append(
                f"utilization is {utilization}, but cannot be moved here: {self._fixed}"
            )
        self._set(**self._launched | self._start, mns=1, mnbt=1)

    def reset(self, button=None) -> None:
        """All sliders and the data set back to where they started."""
        self.complaints = []
        with self._one_update():
            self._set(**self._source)
            self._set(**self._launched | self._start, mns=1, mnbt=1)

    def _within(self, name, value):
        """The value, if the slider has room for it; else its lowest one, and a complaint."""
        low, *_, high = getattr(self, name).rungs
        kind, what = (Real, "a number") if name == "utilization" else (Integral, "a whole number")
        if isinstance(value, kind) and low <= value <= high:
            return value
        self.complaints.append(f"{name} is {value!r}; it must be {what} from {low:g} to {high:,}")
        return low

    @contextmanager
    def _one_update(self):
        """Whatever moves within, what is shown follows once, at the outermost end."""
        outer, self._at_once = self._at_once, True
        try:
            yield
        finally:
            self._at_once = outer
        self._update()

    def _set(self, **values) -> None:
        """Move several controls, with one update."""
        with self._one_update():
            for name, value in values.items():
                control = getattr(self, name)
                if isinstance(control, Slider):
                    control.put(value)
                else:
                    control.value = value

    # ------------------------------------------------------------ what a change does

    def _pick(self, change) -> None:
        """A data set out of the list takes the place of a path."""
        if change.new is None:
            return
        self._named = change.new
        if self.path.value:
            self.path.value = ""  # which loads
        else:
            self._load()

    def _load(self, _=None) -> None:
        """The launches that are named; the sliders of the server back to what was launched.

        A path takes the place of the data set; without one the last data set comes back.
        """
        if bool(self.path.value) == bool(self.data_set.value):
            self.data_set.value = None if self.path.value else self._named
        self._read()
        self._set(**self._launched, mns=1, mnbt=1)

    def _read(self) -> None:
        self._model: Fit | None = None
        self._problem = self._shown = None
        self._pictures = pictures()
        self._fixed, self._launched = "no launch is read", {}
        try:
            named = self.path.value or self.data_set.value or ""
            model = model_of(sources_of(self._several.get(named, named)))
            names = {name: launched(model, name) for name in ("total_memory", U)}
            lacking = [name for name, value in names.items() if value is None]
            self._launched, self._model = {"utilization": names[U]}, model
            self._fixed = (
                f"no launch gives {' or '.join(lacking)}, so how far the pool moves is not known"
            ) * bool(lacking)
        except (InputError, OSError, UnicodeError) as error:
            self._problem = str(error)
        if self._fixed:
            self._launched = {}
        self.utilization.layout.display = "none" if self._fixed else None

    def _update(self, change=None) -> None:
        if self._at_once:
            return
        if change:
            self.complaints = []
        sliders = (self.input_len, self.output_len, self.mns, self.mnbt, self.utilization)
        state = self._problem, *self.complaints, *(each.value for each in sliders)
        if state == self._shown:
            return  # drawing is most of the time
        self._shown = state
        try:
            problem = self._problem or "; ".join(self.complaints)
            if problem or self._model is None:
                raise InputError(problem)
            self._show(
                find_optimum(
                    at_utilization(self._model, self._moved()),
                    Workload(self.input_len.value, self.output_len.value),
                )
            )
        except InputError as error:
            self.optimum, self.chosen, self.reason = None, None, text_of(str(error))
            for image, picture in zip(self.images, self._pictures, strict=True):
                image.value = picture.say(f"No figure: {shorten(self.reason, 300)}")
            self.answer.value = f"<p><strong>No answer.</strong> {escape(self.reason)}</p>"
            self.warnings.value = ""
            self._note()

    def _moved(self) -> float | None:
        """The utilization that the slider stands at; None where it is that of the launches."""
        stands = self.utilization.value
        return None if self._fixed or stands == self._launched["utilization"] else stands

    def _show(self, optimum) -> None:
        best = optimum.recommended
        factors = self.mns.value, self.mnbt.value
        self.optimum, self.chosen = optimum, None
        if best and factors != (1, 1):
            self.chosen = (
                max(1, round(best.max_num_seqs * factors[0])),
                max(1, round(best.max_num_batched_tokens * factors[1])),
            )
        for image, picture in zip(self.images, self._pictures, strict=True):
            image.value = picture.show(optimum.model, optimum, self.chosen)
        self.answer.value = _answer(optimum, self.chosen, self._moved())
        self.warnings.value = _warnings(optimum)
        self._note()

    def _note(self) -> None:
        """What the sliders cannot do here."""
        off = not (self.optimum and self.optimum.recommended)
        for control in (self.mns, self.mnbt):
            control.layout.display = "none" if off else None
        lines = [f"No slider for utilization: {self._fixed}."] if self._fixed else []
        if off:
            lines.append("No slider for mns and mnbt: there is no recommended point to leave.")
        self.notes.value = "".join(f"<div>{escape(line)}</div>" for line in lines)

    def _repr_mimebundle_(self, **kwargs):
        """Beside the live view: the same pictures and the answer, for readers without a kernel."""
        bundle = super()._repr_mimebundle_(**kwargs)
        stack = np.vstack([picture.pixels for picture in self._pictures])
        bundle["image/png"] = base64.b64encode(png(stack)).decode()
        bundle["text/plain"] = self.text
        return bundle

    @property
    def text(self) -> str:
        """The answer as ``vllm-tuning recommend`` prints it; else why there is none."""
        if not self.optimum:
            return f"No answer. {self.reason}"
        moved = self._moved()
        return (f"With {_flag(moved)}\n" if moved else "") + answer_summary(self.optimum).as_text()


def _flag(utilization) -> str:
    return f"--gpu-memory-utilization {utilization:g}"


def _answer(optimum, chosen, utilization) -> str:
    """HTML: the recommendation, and what leaving the recommended point costs."""
    parts = [f"<p>With <code>{_flag(utilization)}</code></p>"] if utilization else []
    parts += [recommendation(optimum).as_html()]
    parts += [f"<p>{cost_of(optimum, *chosen)}</p>"] if chosen else []
    return "".join(parts)


def _warnings(optimum) -> str:
    """HTML to unfold; by itself, so that it stays unfolded while the flags change."""
    if not (found := optimum.notices):
        return ""
    listed = warnings(found).as_html()
    return f"<details><summary>Warnings: {len(found)}</summary>{listed}</details>"


def cost_of(optimum, seqs, tokens) -> str:
    """What other flags cost: the pool, the full requests that fit, and whether any can preempt."""
    pool, best = Pool(optimum.model, optimum.workload, 1), optimum.recommended
    size = optimum.model.pool(seqs, tokens).n
    more = f"{(size - best.kv_cache) / GIB:+.2f}"
    said = (
        f"<code>{serve_flags(seqs, tokens)}</code> instead: a pool of {size / GIB:.2f} GiB, "
        f"{'the same' if float(more) == 0 else f'{more} GiB'}. "
    )
    if tokens < seqs:
        return said + "vLLM refuses max_num_batched_tokens below max_num_seqs."
    if size <= 0:
        return said + "The server would not start: nothing is left for the KV cache."
    said += f"It holds {pool.concurrency(seqs, tokens):,.1f} full requests: "
    return said + (
        f"{seqs:,} at once never preempt (95 % confidence)."
        if pool.fits(seqs, tokens)
        else f"{seqs:,} at once can preempt."
    )
