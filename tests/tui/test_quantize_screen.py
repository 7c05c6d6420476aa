"""The quantize menu: plans, options, a real job, and its effect on the model."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Checkbox, Static

from async_tests import in_loop
from hearth.app.jobs.child import Stopped
from hearth.app.jobs.job import Job
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Quality, measure_on
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.hub import Download
from hearth.app.tui.quantizing import Quantization, Quantizing
from hearth.app.tui.screens.chat import ChatScreen
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.screens.quantize import QuantizeOptions, QuantizeScreen, Wishes
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import InternalError
from hearth.quant.gguf import preflight
from hearth.quant.gguf.quantize_file import Unfinished, open_partial
from hearth.quant.gguf.quantize_method import GgufMethod
from hearth.quant.gguf.quantize_run import run as quantize
from pilots import opened, until, until_shown
from polling import notices
from quantizing import GUIDE, importances, planned, save_imatrix, sha256
from screens import text_of
from scripted import ScriptedHost

DOWNLOADED = DownloadItem(
    *("1", "organisation/guide:F16", "done", "", ""), 1, 1, None, None, None, quantize="Q8_0"
)


@asynccontextmanager
async def menu(services: Services, size: tuple[int, int] = (120, 40)) -> Any:
    """The app at its quantize screen, with every type planned for the bundled model."""
    async with opened(services, size) as (app, pilot):
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, QuantizeScreen))
        await until(pilot, lambda: screen_of(pilot).is_planned)
        yield app, pilot


def screen_of(pilot: Pilot[Any]) -> QuantizeScreen:
    screen = next(one for one in pilot.app.screen_stack if isinstance(one, QuantizeScreen))
    assert isinstance(screen, QuantizeScreen)
    return screen


async def choose(pilot: Pilot[Any], target: str) -> None:
    found = screen_of(pilot).query_one("#types", ColumnList)
    found.select(f"gguf {target}")
    await until(pilot, lambda: found.selected == f"gguf {target}")


async def start(pilot: Pilot[Any], target: str) -> None:
    """Ask for `target`, and confirm."""
    await choose(pilot, target)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
    await pilot.press("y")


def about(pilot: Pilot[Any]) -> str:
    return str(screen_of(pilot).query_one("#about", Static).content)


def planned_bytes(target: str, **options: str) -> int:
    return GgufMethod().plan(GUIDE, target, options).size_bytes


@in_loop
async def test_every_type_has_its_exact_size(services: Services) -> None:
    async with menu(services) as (_, pilot):
        found = screen_of(pilot).query_one("#types", ColumnList)
        assert found.selected == "gguf Q4_K_M"
        await until(pilot, lambda: f"{planned_bytes('Q4_K_M'):,} bytes" in about(pilot))
        await choose(pilot, "Q8_0")
        await until(pilot, lambda: f"{planned_bytes('Q8_0'):,} bytes" in about(pilot))


@in_loop
async def test_guide_to_q4_k_m_with_numbers_before_and_after(
    services: Services, host: ScriptedHost
) -> None:
    async with menu(services) as (app, pilot):
        await start(pilot, "Q4_K_M")
        made = services.paths.models / "guide-Q4_K_M.gguf"
        await until(pilot, made.exists)
        assert made.stat().st_size == planned_bytes("Q4_K_M")
        await until(pilot, lambda: "Perplexity +0.00%" in about(pilot))
        await until(pilot, lambda: text_of(app).count("2.718 ± 0.000") == 2)
        assert text_of(app).count("42.0 tok/s") >= 2
        assert set(host.models) == {"guide", "guide-Q4_K_M"}
        assert host.unloaded == [str(GUIDE), str(made)]
        assert "guide-Q4_K_M" in [model.name for model in services.library.found()]
    async with menu(services) as (app, pilot):  # Also after a restart.
        await until(pilot, lambda: text_of(app).count("2.718 ± 0.000") == 2)
        models = screen_of(pilot).query_one("#models", ColumnList)
        models.list.focus()
        models.select(str(made))
        await until(pilot, lambda: "Quantized from guide: " in about(pilot))
        assert "perplexity +0.00%" in about(pilot)


class EndlessJob:
    """Replaces `Job`: reports that half is done, and ends when it is stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    @classmethod
    async def start(cls, *_: object) -> EndlessJob:
        return cls()

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        yield {"done": 1, "total": 2, "tensor": "blk.0.attn_q.weight", "eta_s": 7.0, "note": ""}
        await self.stopped.wait()

    async def result(self) -> dict[str, Any]:
        raise Stopped("The job was stopped.")

    def stop(self) -> None:
        self.stopped.set()

    async def close(self) -> None:
        pass


@in_loop
async def test_progress_with_time_left_and_cancel(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hearth.app.tui.quantizing.Job", EndlessJob)
    async with menu(services) as (app, pilot):
        await start(pilot, "Q4_K_M")
        await until_shown(pilot, "7 s left")
        await until_shown(pilot, "50%")
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: app.quantizing.items == [])
        assert list(services.paths.models.iterdir()) == []


class SlowlyStopped(EndlessJob):
    """Ends some time after it was stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.is_closed = False

    def stop(self) -> None:
        pass

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        yield {"done": 1, "total": 2, "tensor": "blk.0.attn_q.weight", "eta_s": 7.0, "note": ""}
        await self.may_end.wait()

    async def close(self) -> None:
        self.is_closed = True


async def silent(job: EndlessJob) -> AsyncIterator[dict[str, Any]]:
    """The updates of a job that has nothing to report yet."""
    await job.stopped.wait()
    for nothing in ():
        yield nothing


class Enough(Exception):
    pass


def interrupted(services: Services) -> Path:
    """The target of a quantization that was killed halfway."""
    target = services.paths.models / "guide-Q4_K_M.gguf"
    calls = iter(range(30))

    def check() -> None:
        if next(calls, None) is None:
            raise Enough

    with pytest.raises(Enough):
        quantize(planned(GUIDE, "Q4_K_M"), target, check=check)
    return target


@in_loop
async def test_what_was_killed_is_resumed_or_deleted(services: Services, tmp_path: Path) -> None:
    whole = quantize(planned(GUIDE, "Q4_K_M"), tmp_path / "whole.gguf").sha256
    target = interrupted(services)
    async with menu(services) as (app, pilot):
        await until_shown(pilot, "paused")
        await pilot.press("space")
        await until(pilot, target.exists)
        assert sha256(target) == whole
        await until(pilot, lambda: app.quantizing.items[0].state == "done")
        assert "Resuming" in app.quantizing.items[0].note
    target.unlink()
    interrupted(services)
    async with menu(services) as (app, pilot):
        await until_shown(pilot, "paused")
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: not list(services.paths.models.glob(".*")))


@in_loop
async def test_options_change_the_plan_and_the_result(services: Services, tmp_path: Path) -> None:
    matrix = save_imatrix(tmp_path / "imatrix.gguf", importances(GUIDE))
    async with menu(services) as (app, pilot):
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, QuantizeOptions))
        form = app.screen
        form.query_one("#option-imatrix", SafeInput).value = "/missing"
        form.query_one("#option-tensor", SafeTextArea).load_text("attn_q=Q8_0\n")
        form.query_one("#measures", Checkbox).value = False
        await pilot.press("ctrl+s")
        await until_shown(pilot, "is not a file")
        form.query_one("#option-imatrix", SafeInput).value = str(matrix)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: app.screen is not form)
        options = {"imatrix": str(matrix), "tensor": ["attn_q=Q8_0"]}
        wanted = GgufMethod().plan(GUIDE, "Q4_K_M", options).size_bytes
        assert wanted != planned_bytes("Q4_K_M")
        await choose(pilot, "Q4_K_M")
        await until(pilot, lambda: f"{wanted:,} bytes" in about(pilot))
        assert "imatrix" in about(pilot) and "attn_q=Q8_0" in about(pilot)
        await start(pilot, "Q4_K_M")
        await until(pilot, lambda: "is in the library" in about(pilot))
        made = services.paths.models / "guide-Q4_K_M.gguf"
        assert made.stat().st_size == wanted


@in_loop
async def test_a_type_that_needs_an_importance_matrix_gets_one(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = services.paths.data.parent  # The job finds its folders by itself.
    monkeypatch.setenv("HEARTH_HOME", str(home))
    text = home / "text.txt"
    text.write_text("A quantized model takes less memory. " * 300, encoding="utf-8")
    async with menu(services) as (app, pilot):
        app.screen._wishes["gguf"] = Wishes({"calibration": str(text)}, measures=False)
        await start(pilot, "IQ2_XXS")
        await until(pilot, lambda: "is in the library" in about(pilot))
        made = services.paths.models / "guide-IQ2_XXS.gguf"
        assert made.stat().st_size == planned_bytes("IQ2_XXS", calibration=str(text))
        assert preflight.check(made).value("quantize.imatrix.chunks_count") > 1
        (matrix,) = (services.paths.cache / "imatrix").glob("*/*.gguf")
        assert matrix.name.endswith(".imatrix.gguf")


@in_loop
async def test_the_form_begins_at_its_top_and_in_its_first_field(services: Services) -> None:
    async with menu(services, (80, 24)) as (app, pilot):
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, QuantizeOptions))
        await until_shown(pilot, "Options of GGUF")
        await pilot.press(*"auto")
        first = app.screen.query(SafeInput).first()
        assert first.value == "auto" and "Options of GGUF" in text_of(app)


@in_loop
async def test_what_cannot_be_made_says_why(services: Services) -> None:
    async with menu(services) as (app, pilot):
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, QuantizeOptions))
        app.screen.query_one("#option-imatrix", SafeInput).value = "off"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not isinstance(app.screen, QuantizeOptions))
        await choose(pilot, "IQ1_S")
        await until(pilot, lambda: "mportance matrix" in about(pilot))
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(pilot.app.screen, Confirm)


@in_loop
async def test_a_folder_of_safetensors_is_a_source(services: Services) -> None:
    from tiny_folders import tiny_folder  # Imports torch; only needed here.

    folder = tiny_folder("llama3", services.paths.models / "Tiny")
    expected = GgufMethod().plan(folder, "Q8_0", {}).size_bytes
    async with opened(services, (120, 40)) as (app, pilot):
        app.wanted_source = folder
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, QuantizeScreen))
        await until(pilot, lambda: screen_of(pilot).is_planned)
        await choose(pilot, "Q8_0")
        await until(pilot, lambda: f"{expected:,} bytes" in about(pilot))
        await start(pilot, "Q8_0")
        made = services.paths.models / "Tiny-Q8_0.gguf"
        await until(pilot, made.exists)
        assert made.stat().st_size == expected


def question_of(name: str, services: Services) -> dict[str, Any]:
    target = services.paths.models / f"guide-{name}.gguf"
    options: dict[str, Any] = {}
    return quantize_job.question(
        method="gguf", source=str(GUIDE), type=name, options=options, target=target, replace=False
    )


async def in_models(pilot: Pilot[Any], key: str) -> None:
    """Select this line of the lower list."""
    models = screen_of(pilot).query_one("#models", ColumnList)
    models.list.focus()
    models.select(key)
    await until(pilot, lambda: models.selected == key and models.has_focus_within)


@in_loop
async def test_what_another_process_writes_is_followed_to_its_end(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the app is killed, its job ends seconds later: the row must change."""
    question = question_of("Q4_K_M", services)
    target = Path(question["target"])
    request = {name: question[name] for name in ("method", "source", "type", "options", "replace")}
    on_disk = [Unfinished(target, request, 0, 0.0, is_running=True, extra={})]
    monkeypatch.setattr("hearth.app.tui.quantizing.unfinished_in", lambda folder: list(on_disk))
    async with menu(services) as (app, pilot):
        await until_shown(pilot, "in another program")
        await pilot.press("space")
        await until(pilot, lambda: "Another process is writing it" in notices(app))
        on_disk[0] = replace(on_disk[0], share=0.4)
        await until_shown(pilot, "40%")
        on_disk[0] = replace(on_disk[0], is_running=False)
        await until_shown(pilot, "paused")
        on_disk[0] = replace(on_disk[0], is_running=True)
        await pilot.press("r")
        await until_shown(pilot, "in another program")
        on_disk.clear()
        await until(pilot, lambda: app.quantizing.items == [])


@in_loop
async def test_what_is_made_of_a_result_is_listed_once(services: Services) -> None:
    whole = services.paths.models / "guide-F32.gguf"
    small = services.paths.models / "guide-F32-Q8_0.gguf"
    services.paths.models.mkdir(parents=True)
    quantize(planned(GUIDE, "F32"), whole)
    quantize(planned(whole, "Q8_0"), small)
    async with menu(services) as (app, pilot):
        for source, target in ((GUIDE, whole), (whole, small)):
            question = question_of("", services) | {"source": str(source)}
            question["target"] = str(target)
            app.quantizing._all[target] = Quantization(question, "done")
        listed = screen_of(pilot).query_one("#models", ColumnList).list
        await until(pilot, lambda: listed.option_count == 3)
        ids = {listed.get_option_at_index(at).id for at in range(3)}
        assert ids == {str(GUIDE), str(whole), str(small)}


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@in_loop
async def test_a_folder_that_cannot_be_made_is_told(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with menu(services) as (app, pilot):
        await choose(pilot, "Q8_0")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", full)
            await pilot.press("enter")
            await until(pilot, lambda: app.error_lines)
            app.quantizing.follow_up(DOWNLOADED, GUIDE)
            await until(pilot, lambda: "No space left on device" in notices(app))
        assert app.quantizing.items == []


@pytest.mark.parametrize("is_removed", [True, False])
@in_loop
async def test_a_download_that_cannot_be_noted_as_quantized_is_no_crash(
    services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_removed: bool
) -> None:
    """It was removed from the list meanwhile, or the disk is full."""
    monkeypatch.setattr("hearth.app.tui.quantizing.Job", EndlessJob)
    downloads = services.downloads
    async with opened(services) as (app, pilot):
        ident = await downloads.add(Download("a/b", "main", "0" * 40, ()), "b:F16", "Q8_0")
        if is_removed:
            await downloads.cancel(ident)
        first_part = tmp_path / "b-F16-00001-of-00003.gguf"
        app.quantizing.follow_up(replace(DOWNLOADED, id=ident), first_part)
        await until(pilot, lambda: app.quantizing.items and app.quantizing.items[0].job)
        assert app.quantizing.items[0].target.name == "b-Q8_0.gguf"
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            app.quantizing.items[0].job.stop()
            await until(pilot, lambda: not app.quantizing._following)
        assert ("No space left on device" in notices(app)) != is_removed


@in_loop
async def test_a_look_that_is_late_hides_nothing(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans end in the order in which they began, although the first takes longer: it found the job
    that was stopped meanwhile.
    """
    question = question_of("Q4_K_M", services)
    seen = Unfinished(Path(question["target"]), {**question}, 0, 0.0, is_running=True, extra={})
    for name in ("target", "threads"):
        del seen.request[name]
    began, may_end = threading.Event(), threading.Event()
    looks = iter([seen, replace(seen, is_running=False)])

    def look(folder: Path) -> list[Unfinished]:
        found = next(looks)
        if found is seen:
            began.set()
            may_end.wait(10)
        return [found]

    monkeypatch.setattr("hearth.app.tui.quantizing.unfinished_in", look)
    quantizing = Quantizing(App(), services)
    late = asyncio.create_task(quantizing.refresh())
    await asyncio.to_thread(began.wait, 10)
    second = asyncio.create_task(quantizing.refresh())
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(late, second)
    assert [one.state for one in quantizing.items] == ["paused"]


@in_loop
async def test_space_twice_pauses_once_and_nothing_is_lost(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hearth.app.tui.quantizing.Job", SlowlyStopped)
    async with menu(services) as (app, pilot):
        await start(pilot, "Q4_K_M")
        await until_shown(pilot, "7 s left")
        await pilot.press("space")
        await until_shown(pilot, "stopping")
        await pilot.press("space")
        (item,) = app.quantizing.items
        assert item.job is not None and item.job.is_closed is False
        item.job.may_end.set()
        await until_shown(pilot, "paused")
        assert [one.state for one in app.quantizing.items] == ["paused"]


@in_loop
async def test_what_failed_is_tried_again_from_where_it_was(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(job: EndlessJob) -> dict[str, Any]:
        raise InternalError("The process ended without an answer.")

    monkeypatch.setattr("hearth.app.tui.quantizing.Job", EndlessJob)
    async with menu(services) as (app, pilot):
        with monkeypatch.context() as patch:
            patch.setattr(EndlessJob, "result", killed)
            await start(pilot, "Q4_K_M")
            await until_shown(pilot, "7 s left")
            app.quantizing.items[0].job.stop()
            await until(pilot, lambda: "without an answer" in about(pilot))
            assert "Space tries again" in about(pilot)
        with monkeypatch.context() as patch:
            patch.setattr(EndlessJob, "updates", silent)
            await pilot.press("space")
            await until_shown(pilot, "reading the source")
            await until_shown(pilot, "50%")
            await until(pilot, lambda: "without an answer" not in about(pilot))


@in_loop
async def test_what_waits_is_not_forgotten_with_the_app(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hearth.app.tui.quantizing.Job", EndlessJob)
    async with menu(services) as (app, pilot):
        app.screen._wishes["gguf"] = Wishes(measures=False)
        await start(pilot, "Q4_K_M")
        await until_shown(pilot, "7 s left")
        await start(pilot, "Q8_0")
        await until_shown(pilot, "waiting")
    async with menu(services) as (app, pilot):
        await until(pilot, lambda: text_of(app).count("paused") == 2)
        assert [one.measures for one in app.quantizing.items] == [False, False]
        assert [one.question for one in app.quantizing.items] == [
            question_of("Q4_K_M", services),
            question_of("Q8_0", services),
        ]
        monkeypatch.setattr("hearth.app.tui.quantizing.Job", Job)
        target = services.paths.models / "guide-Q8_0.gguf"
        await in_models(pilot, f"job {target}")
        await pilot.press("space")
        await until(pilot, target.exists)
        await until(pilot, lambda: not list(services.paths.models.glob(".*Q8_0*")))
        (item,) = [one for one in app.quantizing.items if one.target == target]
        await until(pilot, lambda: item.state == "done")
        assert "Perplexity" not in item.detail and item.note == ""


@in_loop
async def test_what_another_process_writes_is_not_deleted(services: Services) -> None:
    target = interrupted(services)
    async with menu(services) as (app, pilot):
        await until_shown(pilot, "paused")
        begin = {"request": {}, "size_bytes": 1, "made_of": {"source": 1}}
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        with open_partial(target, begin, lambda: None):
            await pilot.press("y")
            await until_shown(pilot, "Another process is writing")
        assert list(services.paths.models.glob(".*part"))


@in_loop
async def test_a_model_that_was_not_measured_is_measured_later(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, gate = services.paths.models / "guide-Q4_K_M.gguf", asyncio.Event()

    async def gated(*given: Any, **options: Any) -> Quality:
        await gate.wait()
        return await measure_on(*given, **options)

    monkeypatch.setattr("hearth.app.tui.quantizing.measure_on", gated)
    services.paths.models.mkdir(parents=True, exist_ok=True)
    quantize(planned(GUIDE, "Q4_K_M"), target)
    async with menu(services) as (app, pilot):
        await until_shown(pilot, "not measured")
        await in_models(pilot, str(target))
        await until(pilot, lambda: "Space measures it" in about(pilot))
        gate.clear()
        await pilot.press("space")
        await until_shown(pilot, "measuring guide")
        await pilot.press("space")
        await until(pilot, lambda: "measuring guide" not in text_of(app))
        assert not [one for one in app.quantizing.items if one.is_active]
        gate.set()
        await pilot.press("space")
        await until(pilot, lambda: text_of(app).count("2.718 ± 0.000") == 2)
        assert target.exists()
        await in_models(pilot, str(target))
        await until(pilot, lambda: "windows of" in about(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChatScreen))
        await until_shown(pilot, "guide-Q4_K_M")


@in_loop
async def test_what_was_begun_again_is_not_forgotten_with_the_one_before(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = question_of("Q4_K_M", services)
    first, again = Quantization(question, "running"), Quantization(question, "waiting")

    async def stopped(item: Quantization) -> str:
        raise Stopped("The job was stopped.")

    quantizing = Quantizing(App(), services)
    monkeypatch.setattr(quantizing, "_run", stopped)
    for known in (again, first):
        quantizing._all[first.target] = known
        await quantizing._work(first)
        assert quantizing.items == [known]
    assert (first.state, again.state) == ("paused", "waiting")
    monkeypatch.setattr(App, "run_worker", lambda _, work, **__: work.close())
    for state, share in (("paused", 0.5), ("done", 0.0)):
        quantizing._all[first.target] = Quantization(question, state, 0.5)
        assert quantizing.start(question) and quantizing.items[0].share == share
