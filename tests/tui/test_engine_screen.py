"""The engine screen: a live table of models and requests, and the actions on them."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from async_tests import in_loop
from fake_host import INFO
from hearth.app.log_file import tail
from hearth.app.tui.screens.engine import EngineScreen
from hearth.app.tui.token_rate import TokenRate
from hearth.app.tui.widgets.engine_view import drafts_line, kv_bar, kv_legend
from hearth.backends.contract.loaded import (
    EngineStats,
    HostStats,
    ModelInfo,
    RequestStats,
    WorkerStats,
)
from hearth.backends.errors import HostUnreachable
from polling import until
from screen_app import app_on
from screens import text_of
from scripted import Script, failing

PLACE = "/models/guide.gguf"
REQUESTS = (
    RequestStats(1, "client-7", "decoding", 1024, 1100, 512, 88, 41.25),
    RequestStats(2, "evil\x1b[31m[red]", "prefill", 4096, 512),
    RequestStats(3, "later", "queued"),
)
ENGINE = EngineStats(
    running=2,
    waiting=1,
    pool_tokens=4096,
    allocated_tokens=2048,
    live_tokens=512,
    kept_tokens=256,
    kept_prefixes=3,
    kv_bytes_per_token=1000,
    requests=REQUESTS,
)


def stats(*workers, generated=0):
    info = ModelInfo(**{**INFO, "name": "guide", "path": PLACE})
    engine = replace(ENGINE, generated_tokens=generated)
    busy = WorkerStats("guide", PLACE, 4711, 2, 1, 1, 0.0, info, engine, 300.0)
    return HostStats(4700, "0.1.0", time.time() - 60, 2, workers or (busy,))


def idle(name, path):
    info = ModelInfo(**{**INFO, "name": name, "path": path})
    return WorkerStats(name, path, 4712, 0, 0, 0, 12.0, info, replace(ENGINE, requests=()), 300.0)


@pytest.fixture
def shown(services, host):
    """Shows the engine screen, once it has read `told`."""

    @asynccontextmanager
    async def show(told):
        host.told = told
        app = app_on("engine", services)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "host process" in text_of(app) or told is None)
            yield app, pilot

    return show


@in_loop
async def test_requests_of_all_models_are_told_with_their_numbers(shown):
    async with shown(stats()) as (app, pilot):
        await until(pilot, lambda: "decoding" in text_of(app))
        text = text_of(app)
        line = next(line for line in text.splitlines() if "client-7" in line)
        assert line.split() == ["client-7", "guide", "decoding", "1,024", "512", "88", "41.2"]
        assert "prefill 512/4,096" in text and "2 running, 1 waiting" in text
        assert "evil␛[31m[red]" in text


@in_loop
async def test_what_a_request_forgot_is_told(shown):
    [busy] = stats().workers
    row = replace(REQUESTS[0], forgotten_tokens=12_345)
    async with shown(stats(replace(busy, engine=replace(ENGINE, requests=(row,))))) as (app, pilot):
        await until(pilot, lambda: "streaming forgot 12k" in text_of(app))


@in_loop
async def test_a_request_of_somebody_else_is_ended(shown, host):
    async with shown(stats()) as (app, pilot):
        await until(pilot, lambda: "decoding" in text_of(app))
        await pilot.press("down", "x")
        await until(pilot, lambda: host.ended)
        assert host.ended == [(4711, 2)]


@in_loop
async def test_the_request_of_an_own_chat_is_stopped_as_in_the_chat(shown, host):
    async with shown(stats()) as (app, pilot):
        host.scripts["guide"] = Script("one two three", gate=asyncio.Semaphore(1))
        session = await app.sessions.create("guide")
        await session.change(title="Rome")
        await session.send("Where?")
        mine = RequestStats(9, session.thread.id, "decoding", 10, 12, 0, 1, 1.0)
        worker = stats().workers[0]
        engine = replace(ENGINE, requests=(mine,))
        host.told = stats(replace(worker, engine=engine))
        await until(pilot, lambda: "Rome" in text_of(app))
        await pilot.press("x")
        await session.wait()
        assert not session.is_busy and host.ended == []
        assert session.messages[-1].state == "stopped"


@in_loop
async def test_a_model_is_unloaded(shown, host):
    models = (idle("first", "/models/first.gguf"), idle("second", "/models/second.gguf"))
    async with shown(stats(*models)) as (app, pilot):
        await until(pilot, lambda: "12 s" in text_of(app))
        await pilot.press("u")
        await until(pilot, lambda: host.unloaded)
        assert host.unloaded == ["/models/first.gguf"]


@in_loop
async def test_nothing_is_asked_while_it_is_not_shown(shown, host):
    looks = []
    async with shown(stats()) as (app, pilot):
        told = host.stats

        async def counting():
            looks.append(app.screen)
            return await told()

        host.stats = counting
        await until(pilot, lambda: looks)
        await pilot.press("f1")
        await until(pilot, lambda: not isinstance(app.screen, EngineScreen))
        await pilot.pause()
        seen = len(looks)
        await pilot.pause(0.5)  # Longer than the time between two updates.
        assert len(looks) == seen
        await pilot.press("escape")
        await until(pilot, lambda: len(looks) > seen)


@in_loop
async def test_where_no_host_runs_that_is_said(shown):
    async with shown(None) as (app, pilot):
        await until(pilot, lambda: "The host process is not running" in text_of(app))
        await pilot.press("x", "u", "l")
        assert "No models loaded." in text_of(app)


@in_loop
async def test_a_host_that_does_not_answer_is_told_with_the_cure(shown, host):
    async with shown(stats()) as (app, pilot):
        host.stats = failing(HostUnreachable("It does not answer.", "End it."))
        await until(pilot, lambda: "It does not answer. End it." in text_of(app))


@in_loop
async def test_the_logs_are_followed_and_made_safe(shown, services):
    async with shown(stats()) as (app, pilot):
        log = services.paths.log
        log.mkdir(parents=True)
        (log / "worker.log").write_text("first\n\x1b]0;evil\x07second\n")
        (log / "host.log").write_text("of the host\n")
        await until(pilot, lambda: "second" in text_of(app))
        assert "\x1b" not in text_of(app) and "\x07" not in text_of(app)
        await pilot.press("l")
        await until(pilot, lambda: "of the host" in text_of(app))


def test_the_end_of_a_log_is_read_and_no_more(tmp_path):
    path = tmp_path / "a.log"
    assert tail(path) == []
    path.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(100_000)))
    lines = tail(path, 3)
    assert lines == [
        f"line {number} \N{REPLACEMENT CHARACTER}" for number in range(99_997, 100_000)
    ]
    assert len(tail(path, 10**6)) < 10_000
    path.write_bytes(b"x" * 200_000)
    assert tail(path) == []


def test_the_bar_has_a_block_for_whatever_is_there():
    engine = EngineStats(
        running=1,
        pool_tokens=1_000_000,
        allocated_tokens=10,
        live_tokens=1,
        kept_tokens=1,
        kept_prefixes=1,
        kv_bytes_per_token=2,
    )
    for width in (8, 40, 200):
        assert len(kv_bar(engine, width).plain) == width
        assert {span.style for span in kv_bar(engine, width).spans} >= {"$primary", "$secondary"}
    assert "used 1 " in kv_legend(engine).plain and "2.0 MB" in kv_legend(engine).plain
    windows = replace(engine, window_bytes=3_000_000, window_pool_bytes=5_000_000)
    on_disk = replace(engine, disk_tokens=70, disk_bytes=3_000_000, disk_read_tokens=40)
    on_disk = replace(on_disk, disk_written_bytes=4_000_000)
    assert "on disk 70 (3.0 MB, read 40, written 4.0 MB)" in kv_legend(on_disk).plain
    assert "3.0 MB of 7.0 MB" in kv_legend(windows).plain


def test_drafts_are_shown_by_what_made_them_and_by_position():
    assert drafts_line(ENGINE) == ""
    by = {"ngram": (30, 12), "draft": (10, 8)}
    engine = replace(
        ENGINE,
        drafted_tokens=(20, 20),
        accepted_tokens=(15, 5),
        drafts_by=by,
        generated_tokens=120,
    )
    assert drafts_line(engine) == (
        "drafts: draft model 8 of 10 right, n-grams 12 of 30 right"
        " · by position 0.75 0.25 · 1.20 tokens a step"
    )
    unused = replace(ENGINE, declined_drafts=7)
    assert drafts_line(unused) == "drafts: 7 not used, as they would not pay"


def test_the_rate_is_that_of_the_last_minute():
    rate = TokenRate()
    rate.feed(0.0, {1: 1000})
    assert rate.now == 0.0 and sum(rate.per_second()) == 0.0
    rate.feed(10.0, {1: 1100, 2: 50})  # The second worker is new: all its tokens count now.
    assert rate.now == pytest.approx(15.0)
    assert rate.per_second()[-10:] == pytest.approx([15.0] * 10)
    rate.feed(20.0, {2: 50})  # The first is gone.
    assert rate.now == 0.0 and sum(rate.per_second()) == pytest.approx(150.0)
    rate.feed(90.0, {2: 50})
    assert sum(rate.per_second()) == 0.0
