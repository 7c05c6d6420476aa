"""The quantize screen: the types with their sizes, the jobs, and the effect of quantizing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus, ScreenResume
from textual.widgets import Checkbox, OptionList, Select, Static

from hearth.app import format as words
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Measured, sample_of
from hearth.app.library.local import LocalModel
from hearth.app.library.model_files import SUFFIX
from hearth.app.library.quantize_methods import all_methods
from hearth.app.library.quantized import Quantized, quantized
from hearth.app.paths import own_folder
from hearth.app.terminal import safe_text
from hearth.app.tui.quantizing import Quantization
from hearth.app.tui.screens.base import Dialog, HearthScreen
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.bars import KeyBar
from hearth.app.tui.widgets.cells import bar, cell
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import HearthError, InvalidParameter, ModelNotFound
from hearth.quant.methods import Method, Option, Plan, Target

_TICK_S: Final = 0.25
_SOURCES: Final = ("F32", "F16", "BF16")
_CONTEXT: Final = 4096
_USUAL: Final = "Q4_K_M"
_BAR: Final = 16
_CHAT: Final = "Enter begins a chat with it."
_TICKS_ELSEWHERE: Final = 4
"""Ticks between checks of what another process is writing."""
_TYPES: Final = (
    Column("Type", 9),
    Column("Size", 9, right=True),
    Column("Bits", 6, right=True),
    Column("In memory", 10, right=True, least=70),
    Column("About"),
)
_MODELS: Final = (
    Column("Model"),
    Column("Size", 9, right=True),
    Column("Perplexity", _BAR, right=True),
    Column("Speed", 18, right=True),
)


@dataclass(slots=True)
class _Type:
    """A type that can be made, and its plan once that is known."""

    method: Method
    target: Target
    plan: Plan | HearthError | None = None

    @property
    def key(self) -> str:
        return f"{self.method.name} {self.target.name}"


class QuantizeScreen(HearthScreen):
    """A source, the types that it can be quantized to with their sizes, and what was made."""

    NAME = "quantize"
    DEFAULT_CSS = """
    QuantizeScreen Select { width: 1fr; margin: 1 1 0 1; }
    QuantizeScreen #types { height: 1fr; margin-top: 1; }
    QuantizeScreen #types > OptionList { height: 1fr; }
    QuantizeScreen #models { height: auto; max-height: 40%; margin-top: 1; display: none; }
    QuantizeScreen #models.-on { display: block; }
    QuantizeScreen #about { height: auto; max-height: 8; padding: 0 1; margin-top: 1;
        color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "start", "quantize", id="quantize.start"),
        Binding("o", "options", "options", id="quantize.options"),
        Binding("space", "pause", "pause / resume", id="quantize.pause"),
        Binding("x", "cancel", "cancel", id="quantize.stop"),
        Binding("m", "source", "model", id="quantize.source"),
        Binding("r", "refresh", "refresh", id="quantize.refresh", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, LocalModel] = {}
        self._made: dict[str, Quantized] = {}
        """Keyed by the path of the result."""
        self._types: dict[str, _Type] = {}
        self._planned: LocalModel | None = None
        """The source that the types were planned for."""
        self._wishes: dict[str, Wishes] = {}
        """The user's choices, by the name of the method."""
        self._states: dict[Path, str] = {}
        """The states of the quantizations at the last update, by the path of the result."""
        self._looks = 0

    def body(self) -> ComposeResult:
        yield Select[str]([], prompt="A model in F16, BF16 or F32", id="source", compact=True)
        yield ColumnList(*_TYPES, empty="Loading…", filters=True, id="types")
        yield ColumnList(*_MODELS, filters=True, id="models")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        self.while_shown(_TICK_S, self._look)
        self._list.list.focus()

    @property
    def _list(self) -> ColumnList:
        return self.query_one("#types", ColumnList)

    @property
    def _models(self) -> ColumnList:
        return self.query_one("#models", ColumnList)

    @property
    def _source(self) -> LocalModel | None:
        """The model to quantize."""
        value = self.query_one("#source", Select).value
        return self._sources.get(value) if isinstance(value, str) else None

    @property
    def _type(self) -> _Type | None:
        """The selected type."""
        return self._types.get(self._list.selected or "")

    @property
    def _job(self) -> Quantization | None:
        """The unfinished quantization that the keys act on.

        If the list of models has the focus, it is the selected one; otherwise the active one, or
        else the first.
        """
        items = [one for one in self.hearth.quantizing.items if one.state != "done"]
        if self._models.has_focus_within:
            key = self._models.selected
            return next((one for one in items if key in (_key(one), str(one.target))), None)
        return min(items, key=lambda one: not one.is_active, default=None)

    @property
    def _unmeasured(self) -> Quantized | None:
        """The selected model, if it was quantized from another one and not measured."""
        key = self._models.selected if self._models.has_focus_within else None
        result = self._made.get(key or "")
        return result if result is not None and result.after is None else None

    @property
    def is_planned(self) -> bool:
        """Whether every type has been planned."""
        return bool(self._types) and all(one.plan is not None for one in self._types.values())

    def _wishes_for(self, method: Method) -> Wishes:
        return self._wishes.get(method.name, Wishes())

    # ---- what could be made

    @on(ScreenResume)
    @work(group="sources", exclusive=True)
    async def refresh_sources(self) -> None:
        """Read the models that can be quantized, and those that were made from them.

        Select the source that another screen asked for, if any.
        """
        models = await asyncio.to_thread(self.services.library.list)
        by_name = await asyncio.to_thread(quantized, models)
        self._made = {str(one.model.path): one for one in by_name.values()}
        await self.hearth.quantizing.refresh()
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
        if self._source != self._planned or not self._sources:
            self.plan_all()
        self._show_models()
        if wanted is not None and str(wanted) not in self._sources:
            text = f"{wanted.name} is already quantized; choose the model in F16, BF16 or F32."
            self._about(text)

    def action_refresh(self) -> None:
        """Read the models that can be quantized again."""
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
        self._show_models()
        self._list.list.focus()

    @work(group="plan", exclusive=True)
    async def plan_all(self) -> None:
        """Plan and show every type that the chosen source can be quantized to."""
        source = self._planned = self._source
        is_first = not self._types
        self._types = {}
        if source is not None:
            types = [
                _Type(m, t) for m in all_methods() if m.takes(source.path) for t in m.targets()
            ]
            self._types = {one.key: one for one in types}
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
        empty = "No model in F16, BF16 or F32 is installed; F3 downloads one."
        if self._sources:
            empty = "No model is chosen; m chooses one."
        self._list.show([_row(one) for one in self._types.values()], empty=empty)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the selected line."""
        if event.option_list.has_focus:
            self._describe()

    @on(DescendantFocus)
    def _describe(self) -> None:
        """Describe the selected line of the list that has the focus."""
        if self._models.has_focus_within:
            self._describe_model()
            return
        chosen = self._type
        if chosen is None:
            return
        options = self._wishes_for(chosen.method).words
        with_options = f"\nWith {options}." if options else ""
        if isinstance(chosen.plan, HearthError):
            hint = "\nPress o to set options." if chosen.method.options else ""
            self._about(f"{chosen.plan}{hint}{with_options}")
        elif chosen.plan is not None:
            types = ", ".join(f"{n} {name}" for name, n in chosen.plan.facts()["types"].items())
            memory = words.size(chosen.plan.memory_bytes(_CONTEXT))
            self._about(
                f"{chosen.target.name}: {chosen.target.about}\n"
                f"{chosen.plan.size_bytes:,} bytes, of {chosen.plan.source_bytes:,}; {memory} in "
                f"memory with {_CONTEXT:,} tokens. Tensors: {types}.{with_options}"
            )

    def _describe_model(self) -> None:
        key = self._models.selected or ""
        if key in self._made:
            hint = " Space measures it." if self._unmeasured is not None else ""
            self._about(f"{self._made[key].words}{hint} {_CHAT}")
        elif (item := self._job) is not None:
            self._about(_described(item))
        elif key in self._sources:
            self._about(f"{key}\n{_CHAT}")
        else:
            self._about(key)

    @work(group="options", exclusive=True)
    async def action_options(self) -> None:
        """Set the options of the method."""
        if (chosen := self._type) is not None:
            dialog = QuantizeOptions(chosen.method, self._wishes_for(chosen.method))
            if (wishes := await self.app.push_screen_wait(dialog)) is not None:
                self._wishes[chosen.method.name] = wishes
                self.plan_all()

    # ---- making it

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter quantizes, or chats with a model."""
        if event.option_list is self._list.list:
            self.action_start()
        elif event.option_id is not None:
            self._chat(event.option_id)

    @work(group="chat", exclusive=True)
    async def _chat(self, key: str) -> None:
        """Begin a chat with the model of this line."""
        result = self._made.get(key)
        model = result.model if result is not None else self._sources.get(key)
        if model is not None:
            with self.errors_shown():
                session = await self.sessions.create(model=model.name)
                self.hearth.wanted_thread = session.thread.id
                self.hearth.action_go("chat")

    @work(group="start", exclusive=True)
    async def action_start(self) -> None:
        """Quantize the chosen source to the selected type, after asking."""
        source, chosen = self._source, self._type
        if source is None or chosen is None or chosen.plan is None:
            return
        if isinstance(chosen.plan, HearthError):
            self.show_error(chosen.plan)
            return
        try:
            folder = own_folder(self.services.paths.models)
        except HearthError as error:
            self.show_error(error)
            return
        path = folder / quantize_job.file_name(
            source.name, chosen.target.name, chosen.method.suffix
        )
        exists = await asyncio.to_thread(path.exists)
        quantizing = self.hearth.quantizing
        begun = next((item for item in quantizing.items if item.target == path), None)
        if begun is not None and begun.is_active:
            self.show_notice(f"{path.name} is being made already.", severity="warning")
            return
        details = [f"into {folder}"]
        if exists:
            details.append("It exists already and is replaced.")
        if begun is not None and begun.state == "paused" and begun.share:
            kept = f"{begun.share:.0%} are written, and kept if source and options are the same."
            details.append(kept)
        question = Confirm(
            f"Write {path.name} ({words.size(chosen.plan.size_bytes)})?",
            "\n".join(details),
            yes="Replace" if exists else "Quantize",
            destructive=exists,
        )
        if not await self.app.push_screen_wait(question):
            return
        wishes = self._wishes_for(chosen.method)
        request = quantize_job.question(
            method=chosen.method.name,
            source=str(source.path),
            type=chosen.target.name,
            options=wishes.options,
            target=path,
            replace=exists,
        )
        with self.errors_shown():
            await asyncio.to_thread(wishes.check)
            quantizing.start(request, measures=wishes.measures, text=wishes.path)
            self._look()

    @work(group="job")
    async def action_pause(self) -> None:
        """Pause the quantization, or resume it; measure a model that was not measured."""
        quantizing, item = self.hearth.quantizing, self._job
        if item is None and (unmeasured := self._unmeasured) is not None:
            quantizing.measure(unmeasured)
        elif item is None or item.state == "elsewhere":
            self._explain_selection(item)
        elif item.is_active and not item.is_stopping:
            await quantizing.pause(item)
        elif not item.is_active:
            quantizing.resume(item)
        await quantizing.refresh()
        self._look()

    @work(group="job")
    async def action_cancel(self) -> None:
        """Cancel the quantization, and delete what it wrote."""
        item = self._job
        if item is None or item.state == "elsewhere":
            self._explain_selection(item)
            return
        question = Confirm(
            f"Cancel {item.target.name}?",
            "What is written so far is deleted.",
            yes="Delete",
            no="Keep",
            destructive=True,
        )
        if item.is_made or await self.app.push_screen_wait(question):
            with self.errors_shown():
                await self.hearth.quantizing.cancel(item)
            self._look()
            self.refresh_sources()

    def _explain_selection(self, item: Quantization | None) -> None:
        """Show why a key does nothing."""
        if item is not None:
            self.show_notice(f"{item.target.name}: {_STATES[item.state]}")
        elif self._models.has_focus_within:
            self.show_notice("The selected model is complete; select a line that is not.")
        else:
            self.show_notice("Nothing is being quantized; enter quantizes to the selected type.")

    # ---- showing it

    def _look(self) -> None:
        """Show the progress of the quantizations, and the results of those that ended."""
        quantizing, self._looks = self.hearth.quantizing, self._looks + 1
        items = quantizing.items
        before, self._states = self._states, {one.target: one.state for one in items}
        self._show_models()
        for one in items:
            if one.state != before.get(one.target) and one.state in ("done", "failed") and before:
                self._about(_described(one))
                self.refresh_sources()
            elif one.is_active and before.get(one.target) == "failed":
                self._describe()
        elsewhere = {target for target, state in before.items() if state == "elsewhere"}
        if elsewhere - self._states.keys():
            self.refresh_sources()
        elif elsewhere and self._looks % _TICKS_ELSEWHERE == 0:
            self.run_worker(quantizing.refresh(), group="elsewhere")

    def _show_models(self) -> None:
        """List the source models with what was made from them, and unfinished quantizations.

        The chosen source is first, then those of other quantizations that ended since the app was
        opened.
        """
        chosen, items = self._source, self.hearth.quantizing.items
        sources = [str(chosen.path)] if chosen is not None else []
        sources += [one.question["source"] for one in items if one.state == "done"]
        rows: dict[str, Row] = {}
        for path in dict.fromkeys(sources):
            results = [one for one in self._made.values() if str(one.source.path) == path]
            if results and path not in rows:  # It may already be listed as a result.
                figures = next((one.before for one in reversed(results) if one.before), None)
                rows[path] = _model_row(results[0].source, figures)
            for one in results:
                rows.setdefault(str(one.model.path), _model_row(one.model, one.after))
        rows |= {_key(one): _job_row(one) for one in items if one.state != "done"}
        self._models.set_class(bool(rows), "-on")
        self._models.show(list(rows.values()))
        if self._models.has_focus_within:
            self._describe_model()

    def _about(self, text: str) -> None:
        self.query_one("#about", Static).update(safe_text(text))


_STATES: Final = {
    "waiting": "Waits until the one before is complete.",
    "paused": "Paused; space resumes, x deletes what is written.",
    "elsewhere": "Another process is writing it; it can be paused or cancelled there.",
    "failed": "Space tries again, x deletes what is written.",
    "done": "Tab goes to its line, where enter begins a chat with it.",
}


def _described(item: Quantization) -> str:
    """What became of earlier runs, the current step or result, and what to do next."""
    hint = _STATES.get(item.state)
    if item.is_made and item.state == "failed":
        hint = "Space tries again, x removes this line."
    return "\n".join(filter(None, (item.note, item.detail, hint)))


def _key(item: Quantization) -> str:
    return f"job {item.target}"


def _is_source(model: LocalModel) -> bool:
    """Whether the model can be quantized, that is, whether its weights are unquantized.

    In a folder, packed MXFP4 experts are allowed next to unquantized weights, and stay packed.
    """
    is_folder = model.path.suffix != SUFFIX
    return model.file_type in _SOURCES or (is_folder and model.file_type == "MXFP4")


def _plan(one: _Type, source: Path, options: Any) -> Plan | HearthError:
    """The plan of `one`, or the error that prevents it."""
    try:
        return one.method.plan(source, one.target.name, options)
    except HearthError as error:
        return error
    except OSError as error:
        why = f"{source} cannot be read: {error.strerror or error}."
        return ModelNotFound(why, "Press r to refresh the list of models.")


def _row(one: _Type) -> Row:
    plan = one.plan
    if isinstance(plan, HearthError):
        name, about = cell(one.target.name, "$text-muted"), cell(plan.message, "$text-muted")
        return Row(one.key, (name, "", "", "", about))
    name, about = cell(one.target.name), cell(one.target.about, "$text-muted")
    if plan is None:
        return Row(one.key, (name, "…", "", "", about))
    size, memory = words.size(plan.size_bytes), words.size(plan.memory_bytes(_CONTEXT))
    order: dict[str, str | float] = {"type": one.target.name, "size": plan.size_bytes}
    return Row(one.key, (name, size, f"{plan.bits_per_weight:.2f}", memory, about), order)


def _model_row(model: LocalModel, figures: Measured | None) -> Row:
    perplexity = speed = "not measured"
    if figures is not None:
        perplexity = f"{figures.perplexity:.3f} ± {figures.perplexity_error:.3f}"
        if figures.decode_tok_per_s:
            busy = " busy" if figures.is_busy else ""
            speed = f"{figures.decode_tok_per_s:,.1f} tok/s{busy}"
    size = words.size(model.size_bytes)
    return Row(str(model.path), (cell(model.name), size, perplexity, speed))


def _job_row(item: Quantization) -> Row:
    left: str = "in another program" if item.state == "elsewhere" else item.state
    if item.is_stopping and item.is_active:
        left = "stopping"
    elif item.is_active and item.eta_s is not None:
        left = f"{words.duration(item.eta_s)} left"
    name = item.target.name.removesuffix(SUFFIX)
    now = item.detail if item.state in ("running", "measuring") else ""
    text = Content(" ").join([cell(name), *([cell(f"· {now}", "$text-muted")] if now else [])])
    return Row(_key(item), (text, f"{item.share:.0%}", bar(item.share, _BAR), left))


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's choices for a method.

    Attributes:
        options: values of the method's options by name, without those that were not given.
        measures: whether perplexity and speed are measured before and after.
        text: path of the text to measure on, as typed; empty for the bundled one.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    measures: bool = True
    text: str = ""

    @property
    def words(self) -> str:
        """The values that differ from the defaults, in one line."""
        parts = []
        for name, value in self.options.items():
            told = "" if value is True else " ".join(value) if isinstance(value, list) else value
            parts.append(f"{name} {told}".strip())
        if not self.measures:
            parts.append("nothing is measured")
        elif self.text:
            parts.append(f"measured on {self.text}")
        return " · ".join(parts)

    @property
    def path(self) -> str:
        """Absolute path of the text to measure on; empty for the bundled one."""
        return str(typed_path(self.text)) if self.text else ""

    def check(self) -> None:
        """Raise `InvalidParameter` if the text to measure on cannot be read."""
        if self.measures and self.text:
            sample_of(Path(self.path))


class QuantizeOptions(Dialog[Wishes | None]):
    """A form of a method's options; returns None if they stay as they were.

    Args:
        method: the method that has the options.
        wishes: the initial values.
    """

    DEFAULT_CSS = """
    QuantizeOptions > .dialog {
        width: 92%; max-width: 90; height: auto; max-height: 92%; padding: 1 2;
    }
    QuantizeOptions .help { color: $text-muted; margin-top: 1; }
    QuantizeOptions SafeTextArea, QuantizeOptions SafeTextArea:focus {
        height: 4; border: none; padding: 0;
    }
    QuantizeOptions Checkbox { border: none; padding: 0 1; background: transparent; }
    """
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "take it", id="quantize-options.save", priority=True),
        Binding("escape", "dismiss(None)", "cancel", id="quantize-options.cancel"),
    ]

    def __init__(self, method: Method, wishes: Wishes) -> None:
        super().__init__()
        self._method = method
        self._wishes = wishes

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog", can_focus=False):
            yield Static(f"Options of {self._method.title}", classes="title", markup=False)
            for option in self._method.options:
                yield from self._field(option)
            yield Static("Perplexity and speed, before and after.", classes="help", markup=False)
            yield Checkbox(
                Content("measure"),
                self._wishes.measures,
                id="measures",
                compact=True,
            )
            yield Static(
                "A text to measure on; empty: the bundled one.", classes="help", markup=False
            )
            yield SafeInput(
                self._wishes.text, placeholder="path of a text file", id="text", compact=True
            )
            yield Static("", classes="wrong", markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        """Focus the first field, without scrolling what is above it out of view."""
        self.set_focus(
            self.query("SafeInput, SafeTextArea, Checkbox").first(), scroll_visible=False
        )

    def _field(self, option: Option) -> ComposeResult:
        value = self._wishes.options.get(option.name)
        place = f"option-{option.name}"
        if option.kind == "flag":
            yield Static(option.help, classes="help", markup=False)
            yield Checkbox(Content(option.name), bool(value), id=place, compact=True)
            return
        more = " One a line." if option.kind == "texts" else ""
        yield Static(f"{option.name}: {option.help}{more}", classes="help", markup=False)
        if option.kind == "texts":
            yield SafeTextArea("\n".join(value or ()), id=place, highlight_cursor_line=False)
        else:
            hint = {"number": "a whole number", "choice": " or ".join(option.choices)}
            shown = hint.get(option.kind, "path of a file")
            text = "" if value is None else str(value)
            yield SafeInput(text, placeholder=shown, id=place, compact=True)

    def action_save(self) -> None:
        """Return the values, if they are valid and every named file exists."""
        try:
            values = {option.name: self._value(option) for option in self._method.options}
            options = {
                name: value
                for name, value in values.items()
                if value is not False and value not in ("", [])
            }
            text = self.query_one("#text", SafeInput).value.strip()
            wishes = Wishes(options, self.query_one("#measures", Checkbox).value, text)
            wishes.check()
        except InvalidParameter as error:
            self.show_wrong(str(error))
        else:
            self.dismiss(wishes)

    def _value(self, option: Option) -> Any:
        """The value of the option's field; falsy if it is empty. Raises `InvalidParameter`."""
        place = f"#option-{option.name}"
        if option.kind == "flag":
            return self.query_one(place, Checkbox).value
        if option.kind == "texts":
            lines = self.query_one(place, SafeTextArea).text.splitlines()
            return [line.strip() for line in lines if line.strip()]
        path = self.query_one(place, SafeInput).value.strip()
        if not path:
            return ""
        if option.kind == "number":
            if not path.removeprefix("-").isdecimal():
                raise InvalidParameter(option.name, f"{path} is no whole number.", option.help)
            if option.least is not None and int(path) < option.least:
                least = f"Write a number from {option.least} on."
                raise InvalidParameter(option.name, f"{path} is too small.", least)
            return int(path)
        if path in option.choices:
            return path
        if option.kind == "choice":
            wanted = " or ".join(option.choices)
            raise InvalidParameter(option.name, f"{path} is not possible.", f"Write {wanted}.")
        file = typed_path(path)
        if not file.is_file():
            raise InvalidParameter(option.name, f"{path} is not a file.", "Write its whole path.")
        return str(file)
