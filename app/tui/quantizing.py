"""The quantization jobs of all screens of the terminal app, which run one at a time."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from textual.app import App
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from hearth.app import format as words
from hearth.app.chosen import with_settings
from hearth.app.jobs.child import Stopped
from hearth.app.jobs.job import Job
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Quality, Sample, measure_on, sample_of
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.errors import DownloadNotFound
from hearth.app.library.local import FoundModel
from hearth.app.library.model_files import SUFFIX, stem
from hearth.app.library.quantized import Quantized, keep_measured, speed_change
from hearth.app.paths import own_folder
from hearth.app.terminal import safe_text
from hearth.app.tui.services import Services
from hearth.backends.errors import HearthError
from hearth.quant.gguf.quantize_file import Unfinished, announce, discard, unfinished_in

State = Literal["waiting", "running", "measuring", "paused", "elsewhere", "failed", "done"]
_ACTIVE: Final = ("waiting", "running", "measuring")


@dataclass(slots=True)
class Quantization:
    """A file that is being quantized, or was begun.

    Attributes:
        question: the request passed to the job.
        state: "waiting" for another quantization; "elsewhere" if another process is writing the
            file.
        share: how much is done, 0 to 1.
        detail: the current step, the error, or the result.
        note: what became of an earlier run.
        measures: whether source and result are measured afterwards.
        text: path of the text to measure with; empty for the bundled one.
        is_made: the file is complete, and only measuring is left to do.
        is_stopping: a stop was requested.
    """

    question: dict[str, Any]
    state: State
    share: float = 0.0
    eta_s: float | None = None
    detail: str = ""
    note: str = ""
    measures: bool = True
    text: str = ""
    is_made: bool = False
    is_stopping: bool = False
    job: Job | None = None
    worker: Worker[None] | None = None

    @property
    def target(self) -> Path:
        return Path(self.question["target"])

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE


class Quantizing:
    """The quantizations of one app.

    Unfinished files are kept in the library folder, so that they can be resumed after the app was
    closed or killed.

    Args:
        app: runs the jobs, and shows notices.
        services: the app's services.
    """

    def __init__(self, app: App[Any], services: Services) -> None:
        self._app = app
        self._services = services
        self._all: dict[Path, Quantization] = {}
        self._one = asyncio.Lock()
        self._looking = asyncio.Lock()
        """Held while files are searched for or deleted, so that the last search is shown."""
        self._following: set[str] = set()
        """Ids of the downloads that are being quantized."""

    @property
    def items(self) -> list[Quantization]:
        """All quantizations, in the order in which they were added."""
        return list(self._all.values())

    async def refresh(self) -> None:
        """Look for unfinished files."""
        async with self._looking:
            unfinished = await asyncio.to_thread(unfinished_in, self._services.paths.models)
            targets = {file.target for file in unfinished}
            for target, item in list(self._all.items()):
                if item.state in ("paused", "elsewhere") and target not in targets:
                    del self._all[target]
            for file in unfinished:
                with suppress(TypeError):  # Another version's journal has other fields.
                    self._show(file)

    def _show(self, one: Unfinished) -> None:
        """List the unfinished file `one`, unless this app is making it."""
        item = self._all.get(one.target)
        if item is None:
            question = quantize_job.question(target=one.target, **one.request)
            measures, text = one.extra.get("measures", True), one.extra.get("text", "")
            item = Quantization(question, "paused", measures=bool(measures), text=str(text))
            self._all[one.target] = item
        if item.state in ("paused", "elsewhere"):
            item.state = "elsewhere" if one.is_running else "paused"
            item.share = one.share

    def start(
        self,
        question: dict[str, Any],
        *,
        measures: bool = True,
        text: str = "",
        is_made: bool = False,
    ) -> bool:
        """Queue a file to be made; False if it is already being made.

        Args:
            question: from `quantize_job.question`.
            measures, text, is_made: as in `Quantization`.
        """
        item = Quantization(question, "waiting", measures=measures, text=text, is_made=is_made)
        before = self._all.get(item.target)
        if before is not None and before.is_active:
            return False
        if before is not None and before.state != "done":
            item.share = before.share
        self._all[item.target] = item
        item.worker = self._app.run_worker(self._work(item), group="quantize")
        return True

    def follow_up(self, download: DownloadItem, path: Path) -> None:
        """Quantize the model at `path`, which was downloaded to be quantized.

        A quantization that the end of the app interrupts continues at the next start.
        """
        if download.id not in self._following:
            self._following.add(download.id)
            self._app.run_worker(self._follow_up(download, path), group="quantize")

    async def _follow_up(self, download: DownloadItem, path: Path) -> None:
        name = stem(path) if path.suffix == SUFFIX else download.name.rpartition(":")[0]
        try:
            folder = own_folder(self._services.paths.models)
        except HearthError as error:  # Retried at the next start.
            self._app.notify(safe_text(str(error)), severity="error", markup=False)
            return
        target = folder / quantize_job.file_name(name, download.quantize, SUFFIX)
        request = quantize_job.question(
            method="gguf",
            source=str(path),
            type=download.quantize,
            options={},
            target=target,
            replace=False,
        )
        self.start(request)
        if (worker := self._all[target].worker) is not None:
            with suppress(WorkerCancelled, WorkerFailed):
                await worker.wait()
        try:
            with suppress(DownloadNotFound):  # It was removed from the list meanwhile.
                await self._services.downloads.end_quantize(download.id)
        except HearthError as error:
            self._app.notify(safe_text(str(error)), severity="error", markup=False)
        self._following.discard(download.id)

    def resume(self, item: Quantization) -> None:
        """Continue a paused quantization, or retry a failed one."""
        self.start(item.question, measures=item.measures, text=item.text, is_made=item.is_made)

    def measure(self, made: Quantized) -> None:
        """Measure a model and its source, which were not measured when it was made."""
        model = made.model
        request = quantize_job.question(
            method="",
            source=str(made.source.path),
            type=model.file_type,
            options={},
            target=model.path,
            replace=False,
        )
        self.start(request, is_made=True)

    async def pause(self, item: Quantization) -> None:
        """Stop the job; complete tensors are kept."""
        item.is_stopping = item.is_active
        if item.job is not None:
            item.job.stop()
        elif item.worker is not None:
            item.worker.cancel()
        if item.worker is not None:
            # Textual's `wait` cancels the worker when it is cancelled itself.
            waiting = asyncio.create_task(item.worker.wait())
            with suppress(WorkerCancelled, WorkerFailed):
                await asyncio.shield(waiting)

    async def cancel(self, item: Quantization) -> None:
        """Stop the job, and delete its output unless the file is complete.

        Raises `BeingWritten` if another process is writing the file.
        """
        await self.pause(item)
        async with self._looking:
            if not item.is_made:
                await asyncio.to_thread(discard, item.target)
            if self._all.get(item.target) is item:
                del self._all[item.target]

    async def _work(self, item: Quantization) -> None:
        result = why = ""
        ended: State = "failed"
        try:
            if not item.is_made:
                await self._announce(item)
            async with self._one:
                if not item.is_made:
                    result = await self._run(item)
                    item.is_made = True
                    await self._services.index.changed()
                if item.measures and not item.is_stopping:
                    item.state = "measuring"
                    result = f"{result}\n{await self._compare(item)}".strip()
            ended = "done"
        except (Stopped, asyncio.CancelledError) as stopped:
            ended = "done" if item.is_made else "paused"
            why = "Measuring was stopped; space on its line measures it." if item.is_made else ""
            if isinstance(stopped, asyncio.CancelledError):
                raise
        except HearthError as error:
            why = f"{error.message} {error.hint}"
        except OSError as error:
            why = f"{error.filename}: {error.strerror}."
        finally:
            item.worker = None
            item.state = "done" if result else ended
            item.eta_s, item.detail = None, f"{result} {why}".strip()
        await self.refresh()
        self._notify(item)

    async def _announce(self, item: Quantization) -> None:
        """Record on disk that the file is to be made, so that a waiting job survives the app."""
        request = {
            name: item.question[name] for name in ("method", "source", "type", "options", "replace")
        }
        extra = {"measures": item.measures, "text": item.text}
        await asyncio.to_thread(announce, item.target, request, extra)

    def _notify(self, item: Quantization) -> None:
        """Report how the quantization ended, unless the quantize screen is shown."""
        is_shown = item.target in self._all and item.state in ("done", "failed")
        if is_shown and getattr(self._app.screen_stack[0], "NAME", "") != "quantize":
            severity: Any = "error" if item.state == "failed" else "information"
            self._app.notify(safe_text(item.detail), severity=severity, markup=False)

    async def _run(self, item: Quantization) -> str:
        """Make the file; return a sentence about the result."""
        item.state, item.detail = "running", "reading the source"
        log = own_folder(self._services.paths.log)
        item.job = job = await Job.start(quantize_job.quantize, item.question, log)
        try:
            async for values in job.updates():
                item.share = values["done"] / max(1, values["total"])
                item.eta_s, item.detail = values["eta_s"], values["tensor"]
                item.note = values["note"]
            answer = await job.result()
        finally:
            await job.close()
            item.job = None
        item.share = 1.0
        spent = words.duration(answer["wall_s"])
        size = words.size(answer["size_bytes"])
        return f"{item.target.name} is in the library: {size}, made in {spent}."

    async def _source(self, item: Quantization) -> FoundModel:
        path = Path(item.question["source"])
        known = await self._services.index.models()
        missing = FoundModel(path.name.removesuffix(SUFFIX), path, "path")
        return next((model for model in known if model.path == path), missing)

    async def _compare(self, item: Quantization) -> str:
        """Measure source and result, and return a sentence that compares them.

        The measurements are recorded in the manifest of the result.
        """
        result = FoundModel(item.target.name.removesuffix(SUFFIX), item.target, "path")
        source = await self._source(item)
        path, is_bundled = Path(item.text) if item.text else None, source.origin == "bundled"
        sample = await asyncio.to_thread(sample_of, path, for_guide=is_bundled)
        before = await self._measure(item, source, sample)
        after = await self._measure(item, result, sample)
        measured = (item.target, sample.name, before, after)
        change, error = await asyncio.to_thread(keep_measured, *measured)
        told = "Perplexity is infinite"
        if math.isfinite(change):
            told = f"Perplexity {change:+.2%} ± {error:.2%} on {sample.name}, lower is better"
        return "; ".join(filter(None, (told, speed_change(before, after)))) + "."

    async def _measure(self, item: Quantization, model: FoundModel, sample: Sample) -> Quality:
        """Load `model`, measure it, and unload it unless it was loaded before."""
        item.detail, item.eta_s, item.share = f"measuring {model.name}", None, 0.0

        def show(done: int, total: int) -> None:
            item.share = done / max(1, total)

        chosen = await asyncio.to_thread(with_settings, model, self._services.settings)
        return await measure_on(self._services.host, chosen.spec, sample, on_progress=show)
