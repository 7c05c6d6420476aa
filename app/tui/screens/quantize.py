"""Quantizing: what it would make, how far it is, and what it did to the model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, ProgressBar, Select, Static

from hearth.app.chosen import with_settings
from hearth.app.jobs.child import Stopped
from hearth.app.jobs.job import Job
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Quality, bundled_sample, measure
from hearth.app.library.local import LocalModel
from hearth.app.paths import private_folder
from hearth.app.sizes import format_size
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.widgets.cells import cell, number
from hearth.backends.errors import HearthError
from hearth.quant.methods import Method, Plan, methods

_SOURCES = ("F32", "F16", "BF16")
_CONTEXT = 4096


class QuantizeScreen(HearthScreen):
    """A source, the types that can be made of it with their sizes, and the results."""

    NAME = "quantize"
    DEFAULT_CSS = """
    QuantizeScreen Select { width: 1fr; margin: 0 1; }
    QuantizeScreen #types { height: 1fr; background: $surface; }
    QuantizeScreen #results { height: auto; max-height: 8; }
    QuantizeScreen #run { height: 1; padding: 0 1; display: none; }
    QuantizeScreen #run.-on { display: block; }
    QuantizeScreen #state { width: 1fr; color: $text-muted; }
    QuantizeScreen #about { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "start", "quantize", id="quantize.start"),
        Binding("x", "stop", "stop", id="quantize.stop"),
        Binding("r", "refresh", "read anew", id="quantize.refresh", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sources: list[LocalModel] = []
        self._plans: list[tuple[Method, str, Plan | HearthError]] = []
        self._job: Job | None = None

    def body(self) -> ComposeResult:
        yield Select[str]([], prompt="A model in F16, BF16 or F32", id="source", compact=True)
        yield DataTable(id="types", cursor_type="row")
        with Horizontal(id="run"):
            yield Static("", id="state", markup=False)
            yield ProgressBar(id="progress", show_eta=False)
        yield DataTable(id="results", cursor_type="none")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        self._table("types").add_columns("Type", "Size", "Bits", "In memory", "")
        self._table("results").add_columns("Model", "Size", "Perplexity", "Speed")
        self.refresh_sources()

    def on_screen_resume(self) -> None:
        """A model may have come since, or have been chosen on another screen."""
        self.refresh_sources()

    def _table(self, name: str) -> DataTable[object]:
        return self.query_one(f"#{name}", DataTable)

    @work(group="sources", exclusive=True)
    async def refresh_sources(self) -> None:
        """Read the models that can be quantized anew."""
        models = await asyncio.to_thread(self.services.library.list)
        self._sources = [one for one in models if one.file_type in _SOURCES]
        select = self.query_one("#source", Select)
        wanted, self.hearth.wanted_source = self.hearth.wanted_source, None
        now = str(wanted) if wanted is not None else select.value
        select.set_options(
            (
                safe_text(f"{one.name}  {one.file_type}  {format_size(one.size_bytes)}"),
                str(one.path),
            )
            for one in self._sources
        )
        paths = [str(one.path) for one in self._sources]
        if now in paths:
            select.value = now
        elif paths:
            select.value = paths[0]
        if wanted is not None and str(wanted) not in paths:
            self._about(f"{wanted.name} is quantized already; take the model in F16, BF16 or F32.")

    def action_refresh(self) -> None:
        """Read the models that can be quantized anew."""
        self.refresh_sources()

    def on_select_changed(self, event: Select.Changed) -> None:
        """Plan every type for the chosen source."""
        if isinstance(event.value, str):
            self.plan_all(Path(event.value))

    @work(group="plan", exclusive=True)
    async def plan_all(self, source: Path) -> None:
        """Show what every method would make of `source`."""
        self._plans = await asyncio.to_thread(_plans, source)
        table = self._table("types")
        table.clear()
        for method, target, plan in self._plans:
            if isinstance(plan, HearthError):
                table.add_row(cell(target, "dim"), "", "", "", cell(plan.message, "dim"))
                continue
            table.add_row(
                cell(target),
                number(format_size(plan.size_bytes)),
                number(f"{plan.bits_per_weight:.2f}"),
                number(format_size(plan.memory_bytes(_CONTEXT))),
                cell(_about(method, target), "dim"),
            )

    def on_data_table_row_selected(self) -> None:
        self.action_start()

    @work(group="quantize")
    async def action_start(self) -> None:
        """Make the highlighted type of the chosen source."""
        row = self._table("types").cursor_row
        source = self.query_one("#source", Select).value
        if self._job is not None or not isinstance(source, str) or row >= len(self._plans):
            return
        method, target, plan = self._plans[row]
        if isinstance(plan, HearthError):
            self.tell_error(plan)
            return
        made = Path(source).stem.removesuffix(".f16").removesuffix(".f32").removesuffix(".bf16")
        path = private_folder(self.services.paths.models) / f"{made}-{target}{method.suffix}"
        replace = path.exists()
        question = f"Write {path.name} ({format_size(plan.size_bytes)})?"
        detail = f"{path.parent}" + ("\nIt is there already, and is replaced." if replace else "")
        if await self.app.push_screen_wait(Confirm(question, detail)):
            await self.told(self._run(method, Path(source), target, path, replace=replace))

    async def _run(
        self, method: Method, source: Path, target: str, path: Path, *, replace: bool
    ) -> None:
        question = {
            "method": method.name,
            "source": str(source),
            "type": target,
            "target": str(path),
            "options": {},
            "threads": os.cpu_count() or 1,
            "replace": replace,
        }
        self._job = await Job.start(quantize_job.MODULE, question, self.services.paths.log)
        self._say(f"{target}: reading the source")
        self.query_one("#run").add_class("-on")
        try:
            async for values in self._job.updates():
                self._progress(values["done"], values["total"])
                left = values.get("eta_s")
                more = f", about {round(left)} s left" if left is not None else ""
                self._say(f"{target}: {values['tensor']}{more}")
            answer = await self._job.result()
        except Stopped:
            self._about("Stopped; nothing was written.")
            return
        finally:
            await self._job.close()
            self._job = None
            self.query_one("#run").remove_class("-on")
        await self._compare(source, Path(answer["path"]))

    async def _compare(self, source: Path, made: Path) -> None:
        """Measure both, and show what quantizing did."""
        table = self._table("results")
        table.clear()
        self.query_one("#run").add_class("-on")
        try:
            for path in (source, made):
                quality = await self._measure(path)
                table.add_row(
                    cell(path.name),
                    number(format_size(path.stat().st_size)),
                    number(f"{quality.perplexity:.3f} ± {quality.perplexity_error:.3f}"),
                    number(f"{quality.decode_tok_per_s:.1f} tok/s"),
                )
        finally:
            self.query_one("#run").remove_class("-on")
        self._about(
            f"{made} is in the library now. Perplexity on the bundled text; lower is better."
        )
        self.refresh_sources()

    async def _measure(self, path: Path) -> Quality:
        self._say(f"measuring {path.name}")
        found = await asyncio.to_thread(self.services.library.resolve, str(path))
        chosen = with_settings(found, self.services.settings)
        backend = await self.services.host.backend(chosen.spec)
        for_guide = path.stem.startswith("guide")
        sample = bundled_sample(for_guide=for_guide)
        quality = await measure(backend, sample, on_progress=self._progress)
        await self.services.host.unload(str(path))
        return quality

    def action_stop(self) -> None:
        """Stop what is being made; nothing of it stays."""
        if self._job is not None:
            self._job.stop()

    def _progress(self, done: int, total: int) -> None:
        self.query_one(ProgressBar).update(total=total or None, progress=done)

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(safe_text(text))

    def _about(self, text: str) -> None:
        self.query_one("#about", Static).update(safe_text(text))


def _plans(source: Path) -> list[tuple[Method, str, Any]]:
    """What each type of each method would be, or why it cannot."""
    found: list[tuple[Method, str, Any]] = []
    for method in methods():
        if not method.takes(source):
            continue
        for target in method.targets():
            try:
                found.append((method, target.name, method.plan(source, target.name, {})))
            except HearthError as error:
                found.append((method, target.name, error))
    return found


def _about(method: Method, target: str) -> str:
    return next((one.about for one in method.targets() if one.name == target), "")
