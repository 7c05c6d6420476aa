"""Quantizing: what it would make, how far it is, and what it did to the model."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import OptionList, ProgressBar, Select, Static

from hearth.app import format as words
from hearth.app.chosen import with_settings
from hearth.app.jobs.child import Stopped
from hearth.app.jobs.job import Job
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Quality, Sample, measure, perplexity_change
from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.library.model_files import SUFFIX
from hearth.app.paths import own_folder, private_folder
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.screens.quantize_options import QuantizeOptions, Wishes
from hearth.app.tui.widgets.cells import cell
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.backends.errors import HearthError, ModelNotFound
from hearth.quant.methods import Method, Plan, Target, methods

_SOURCES: Final = ("F32", "F16", "BF16")
_FULL_PRECISION: Final = re.compile(r"[-._](f16|bf16|f32|fp16|fp32)$", re.IGNORECASE)
_CONTEXT: Final = 4096
_USUAL: Final = "Q4_K_M"
_TYPES: Final = (
    Column("Type", 9),
    Column("Size", 9, right=True),
    Column("Bits", 6, right=True),
    Column("In memory", 10, right=True, least=70),
    Column("About"),
)
_RESULTS: Final = (
    Column("Model"),
    Column("Size", 9, right=True),
    Column("Perplexity", 16, right=True),
    Column("Speed", 13, right=True),
)


@dataclass(slots=True)
class _Type:
    """A type that can be made, and what it would be once that is known."""

    method: Method
    target: Target
    plan: Plan | HearthError | None = None

    @property
    def key(self) -> str:
        return f"{self.method.name} {self.target.name}"


class QuantizeScreen(HearthScreen):
    """A source, the types that can be made of it with their sizes, and the results."""

    NAME = "quantize"
    DEFAULT_CSS = """
    QuantizeScreen Select { width: 1fr; margin: 1 1 0 1; }
    QuantizeScreen #types { height: 1fr; margin-top: 1; }
    QuantizeScreen #types > OptionList { height: 1fr; }
    QuantizeScreen #run { height: 1; padding: 0 1; display: none; }
    QuantizeScreen #run.-on { display: block; }
    QuantizeScreen #state {
        width: 1fr; height: 1; padding: 0 2 0 0; color: $text;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    QuantizeScreen ProgressBar { width: auto; }
    QuantizeScreen #bar { width: 24; }
    QuantizeScreen.-narrow #bar { width: 12; }
    QuantizeScreen #results { height: auto; margin-top: 1; display: none; }
    QuantizeScreen #results.-on { display: block; }
    QuantizeScreen #about { height: auto; max-height: 8; padding: 0 1; margin-top: 1;
        color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "start", "quantize", id="quantize.start"),
        Binding("o", "options", "options", id="quantize.options"),
        Binding("x", "stop", "stop", id="quantize.stop"),
        Binding("s", "source", "source", id="quantize.source"),
        Binding("r", "refresh", "refresh", id="quantize.refresh", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, LocalModel] = {}
        self._types: dict[str, _Type] = {}
        self._planned: LocalModel | None = None
        """The source that the types were planned for."""
        self._wishes: dict[str, Wishes] = {}
        """By the name of a method."""
        self._job: Job | None = None
        self._is_busy = False
        self._news = ""
        """What came of the last job; it stays until another type is chosen."""
        self._told_of: str | None = None
        """The key of the type that was chosen last."""

    def body(self) -> ComposeResult:
        yield Select[str]([], prompt="A model in F16, BF16 or F32", id="source", compact=True)
        empty = "Only models in F16, BF16 or F32 are quantized, and none is here."
        yield ColumnList(*_TYPES, empty=empty, id="types")
        with Horizontal(id="run"):
            yield Static("", id="state", markup=False)
            yield ProgressBar(id="progress", show_eta=False)
        yield ColumnList(*_RESULTS, id="results")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        """Begin with the types."""
        self.query_one("#results", ColumnList).list.can_focus = False
        self._list.list.focus()
        self.refresh_sources()

    def on_screen_resume(self) -> None:
        """A model may have come since, or have been chosen on another screen."""
        self.refresh_sources()

    @property
    def _list(self) -> ColumnList:
        return self.query_one("#types", ColumnList)

    @property
    def _source(self) -> LocalModel | None:
        """The model that is to be quantized."""
        value = self.query_one("#source", Select).value
        return self._sources.get(value) if isinstance(value, str) else None

    @property
    def is_planned(self) -> bool:
        """It is known of every type what it would be."""
        return bool(self._types) and all(one.plan is not None for one in self._types.values())

    def _wishes_for(self, method: Method) -> Wishes:
        return self._wishes.get(method.name, Wishes())

    # ---- what could be made

    @work(group="sources", exclusive=True)
    async def refresh_sources(self) -> None:
        """Read the models that can be quantized anew."""
        models = await asyncio.to_thread(self.services.library.list)
        self._sources = {str(one.path): one for one in models if _is_source(one)}
        select = self.query_one("#source", Select)
        wanted, self.hearth.wanted_source = self.hearth.wanted_source, None
        now = str(wanted) if wanted is not None else select.value
        options = [
            (Content(safe_text(f"{one.name} · {one.file_type} · {words.size(one.size_bytes)}")), at)
            for at, one in self._sources.items()
        ]
        with self.prevent(Select.Changed):
            select.set_options(options)
            if self._sources:
                select.value = now if now in self._sources else next(iter(self._sources))
        if self._source != self._planned:
            self.plan_all()
        if wanted is not None and str(wanted) not in self._sources:
            self._about(f"{wanted.name} is quantized already; take the model in F16, BF16 or F32.")

    def action_refresh(self) -> None:
        """Read the models that can be quantized anew."""
        self._planned = None
        self.refresh_sources()

    def action_source(self) -> None:
        """Choose another source."""
        select = self.query_one("#source", Select)
        select.focus()
        select.action_show_overlay()

    def on_select_changed(self) -> None:
        """Plan every type for the chosen source."""
        self.plan_all()
        self._list.list.focus()

    @work(group="plan", exclusive=True)
    async def plan_all(self) -> None:
        """Show what every method would make of the chosen source."""
        source = self._planned = self._source
        is_first = not self._types
        self._types = {}
        if source is not None:
            found = [_Type(m, t) for m in methods() if m.takes(source.path) for t in m.targets()]
            self._types = {one.key: one for one in found}
        self._show_types()
        usual = [key for key in self._types if key.endswith(f" {_USUAL}")]
        if is_first and usual:
            self.call_after_refresh(self._list.select, usual[0])
        for one in self._types.values():
            assert source is not None
            options = self._wishes_for(one.method).options
            one.plan = await asyncio.to_thread(_plan, one, source.path, options)
            self._show_types()
        self._describe()

    def _show_types(self) -> None:
        self._list.show([_row(one) for one in self._types.values()])

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Say more about the type, if it is another one: the list is drawn anew when the terminal
        gets another size.
        """
        is_other = event.option_list is self._list.list and self._list.selected != self._told_of
        if is_other and not self._is_busy:
            self._told_of = self._list.selected
            self._news = ""
            self._describe()

    def _describe(self) -> None:
        one = self._types.get(self._list.selected or "")
        if one is None or self._is_busy or self._news:
            return
        told = self._wishes_for(one.method).words
        with_options = f"\nWith {told}." if told else ""
        if isinstance(one.plan, HearthError):
            self._about(f"{one.plan.message} {one.plan.hint}{with_options}")
        elif one.plan is not None:
            types = ", ".join(f"{n} {name}" for name, n in one.plan.facts()["types"].items())
            memory = words.size(one.plan.memory_bytes(_CONTEXT))
            self._about(
                f"{one.target.name}: {one.target.about}\n"
                f"{one.plan.size_bytes:,} bytes, of {one.plan.source_bytes:,}; {memory} in memory "
                f"with {_CONTEXT:,} tokens. Tensors: {types}.{with_options}"
            )

    @work(group="options", exclusive=True)
    async def action_options(self) -> None:
        """Tell the method more."""
        one = self._types.get(self._list.selected or "")
        if one is None:
            return
        wishes = await self.app.push_screen_wait(
            QuantizeOptions(one.method, self._wishes_for(one.method))
        )
        if wishes is not None:
            self._wishes[one.method.name] = wishes
            self.plan_all()

    # ---- making it

    def on_option_list_option_selected(self) -> None:
        self.action_start()

    @work(group="quantize")
    async def action_start(self) -> None:
        """Make the chosen type of the chosen source."""
        source, one = self._source, self._types.get(self._list.selected or "")
        if source is None or one is None or one.plan is None:
            return
        if self._is_busy:
            self.tell("One model is being quantized already; x stops it.", severity="warning")
            return
        if isinstance(one.plan, HearthError):
            self.tell_error(one.plan)
            return
        stem = _FULL_PRECISION.sub("", Path(source.name).name)
        folder = private_folder(self.services.paths.models)
        path = folder / f"{stem}-{one.target.name}{one.method.suffix}"
        question = f"Write {path.name} ({words.size(one.plan.size_bytes)})?"
        there = (
            "\nIt is there already, and is replaced."
            if await asyncio.to_thread(path.exists)
            else ""
        )
        if not await self.app.push_screen_wait(
            Confirm(question, f"into {folder}{there}", yes="Write it", no="Cancel")
        ):
            return
        self._is_busy = True
        try:
            await self.told(self._make(source, one, path, replace=bool(there)))
        finally:
            self._is_busy = False
            self._show_run(is_on=False)

    async def _make(self, source: LocalModel, one: _Type, path: Path, *, replace: bool) -> None:
        wishes = self._wishes_for(one.method)
        sample = await asyncio.to_thread(wishes.sample, for_guide=source.origin == "bundled")
        question = {
            "method": one.method.name,
            "source": str(source.path),
            "type": one.target.name,
            "target": str(path),
            "options": dict(wishes.options),
            "threads": psutil.cpu_count(logical=False) or 1,
            "replace": replace,
        }
        self._show_run(is_on=True)
        self._say(f"{one.target.name}: reading the source")
        try:
            answer = await self._run(one, question)
        except Stopped:
            self._tell_news("Stopped; nothing was written.")
            return
        spent = words.duration(answer["wall_s"])
        made = f"{path.name} is in the library, {answer['size_bytes']:,} bytes, made in {spent}."
        self._tell_news(made)
        self.refresh_sources()
        if sample is not None:
            await self._compare(source, path, sample, made)

    async def _run(self, one: _Type, question: dict[str, Any]) -> dict[str, Any]:
        """The job's answer."""
        log = own_folder(self.services.paths.log)
        self._job = job = await Job.start(quantize_job.MODULE, question, log)
        try:
            async for values in job.updates():
                left = values["eta_s"]
                more = f"{words.duration(left)} left · " if left is not None else ""
                self._progress(values["done"], values["total"])
                self._say(f"{one.target.name} · {more}{values['tensor']}")
            return await job.result()
        finally:
            self._job = None
            await job.close()

    async def _compare(self, source: LocalModel, path: Path, sample: Sample, made: str) -> None:
        """Measure both, and show what quantizing did."""
        library = self.services.library
        before = await asyncio.to_thread(library.resolve, source.name)
        rows: list[Row] = []
        found: list[Quality] = []
        try:
            made_of = (before, source.size_bytes)
            result = (FoundModel(path.stem, path, "path"), path.stat().st_size)
            for model, size_bytes in (made_of, result):
                self._say(f"measuring {model.name}")
                found.append(await self._measure(model, sample))
                rows.append(_result(model, size_bytes, found[-1]))
                results = self.query_one("#results", ColumnList)
                results.add_class("-on")
                results.show(rows)
        except asyncio.CancelledError:
            self._tell_news(f"{made} It was not measured to the end.")
            raise
        change, error = perplexity_change(*found)
        told = f"Perplexity {change:+.2%} ± {error:.2%}" if math.isfinite(change) else "Perplexity"
        self._tell_news(f"{made}\n{told} on {sample.name}; lower is better.")

    async def _measure(self, model: FoundModel, sample: Sample) -> Quality:
        """Load `model`, measure it, and unload it unless it was loaded before."""
        host = self.services.host
        spec = with_settings(model, self.services.settings).spec
        stats = await host.stats()
        was_loaded = stats is not None and any(one.path == spec.path for one in stats.workers)
        try:
            return await measure(await host.backend(spec), sample, on_progress=self._progress)
        finally:
            if not was_loaded:
                await host.unload(spec.path)

    def action_stop(self) -> None:
        """Stop what is being made, of which nothing stays, or what is being measured."""
        if self._job is not None:
            self._job.stop()
        elif self._is_busy:
            self.workers.cancel_group(self, "quantize")

    # ---- showing it

    def _show_run(self, *, is_on: bool) -> None:
        self.query_one("#run").set_class(is_on, "-on")
        self._progress(0, 0)

    def _progress(self, done: int, total: int) -> None:
        self.query_one(ProgressBar).update(total=total or None, progress=done)

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(safe_text(text))

    def _tell_news(self, text: str) -> None:
        self._news = text
        self._about(text)

    def _about(self, text: str) -> None:
        self.query_one("#about", Static).update(safe_text(text))


def _is_source(model: LocalModel) -> bool:
    """Its numbers are plain; or, of a folder, most are, and packed experts stay so."""
    is_folder = bool(model.file_type) and model.path.suffix != SUFFIX
    return is_folder or model.file_type in _SOURCES


def _plan(one: _Type, source: Path, options: Any) -> Plan | HearthError:
    """What `one` would be, or why it cannot be."""
    try:
        return one.method.plan(source, one.target.name, options)
    except HearthError as error:
        return error
    except OSError as error:
        why = f"{source} cannot be read: {error.strerror or error}."
        return ModelNotFound(why, "Refresh the list of models.")


def _row(one: _Type) -> Row:
    plan = one.plan
    if isinstance(plan, HearthError):
        name, about = cell(one.target.name, "$text-muted"), cell(plan.message, "$text-muted")
        return Row(one.key, (name, "", "", "", about))
    name, about = cell(one.target.name), cell(one.target.about, "$text-muted")
    if plan is None:
        return Row(one.key, (name, "…", "", "", about))
    size, memory = words.size(plan.size_bytes), words.size(plan.memory_bytes(_CONTEXT))
    return Row(one.key, (name, size, f"{plan.bits_per_weight:.2f}", memory, about))


def _result(model: FoundModel, size_bytes: int, quality: Quality) -> Row:
    speed = f"{quality.decode_tok_per_s:,.1f} tok/s" if quality.decode_tok_per_s else "not measured"
    perplexity = f"{quality.perplexity:.3f} ± {quality.perplexity_error:.3f}"
    return Row(str(model.path), (cell(model.name), words.size(size_bytes), perplexity, speed))
