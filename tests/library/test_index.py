"""The index: names are looked up without a scan, and scans are shared, limited and off the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from async_tests import in_loop
from hearth.app.library import index as index_module
from hearth.app.library.errors import LibraryNotRead
from hearth.app.library.index import LibraryIndex, rest_after
from hearth.app.library.local import FoundModel, Library
from hearth.backends.errors import ModelNotFound

UNKNOWN = "no-such-model"


class Watched(Library):
    """Counts its scans, notes their threads, and lets a test hold one up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / "no bundle", aliases={"gpt-*": "alpha"})
        self.scans: list[threading.Thread] = []
        self.began, self.may_go = threading.Event(), threading.Event()
        self.may_go.set()

    def found(self) -> list[FoundModel]:
        self.scans.append(threading.current_thread())
        self.began.set()
        assert self.may_go.wait(60)
        return super().found()


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "alpha.gguf").write_bytes(b"GGUF")
    watched = Watched(tmp_path)
    yield watched
    watched.may_go.set()


def at_once(_: float) -> float:
    return 0.0


def never_again(_: float) -> float:
    return 1000.0


async def held_up(library: Watched, index: LibraryIndex) -> None:
    """Begin a scan that does not end."""
    library.may_go.clear()
    library.began.clear()
    index.refresh()
    await asyncio.to_thread(library.began.wait, 60)


@in_loop
async def test_a_known_name_takes_no_scan(library: Watched) -> None:
    index = LibraryIndex(library, rest=at_once)
    assert {model.name for model in await index.models()} == {"alpha"}
    for name in ("alpha", "ALPHA", "alpha.gguf", "gpt-5"):
        model = await index.find(name)
        assert model is not None and model.name == "alpha"
    assert len(library.scans) == 1
    assert library.scans[0] is not threading.main_thread()


def test_the_pause_begins_before_a_scan_has_its_result(library: Watched) -> None:
    was_done: list[bool] = []

    def rest(_: float) -> float:
        was_done.append(scan.done())
        return 0.0

    library.may_go.clear()
    scan = LibraryIndex(library, rest=rest).refresh()
    library.may_go.set()
    scan.result(60)
    assert was_done == [False]


@in_loop
async def test_a_model_that_was_added_is_found(library: Watched) -> None:
    index = LibraryIndex(library)
    assert await index.find("beta") is None
    (library.folder / "beta.gguf").write_bytes(b"GGUF")
    model = await index.find("beta")
    assert model is not None and model.path == library.folder / "beta.gguf"
    (library.folder / "gamma.gguf").write_bytes(b"GGUF")
    assert "gamma" in [model.name for model in await index.models()]


@in_loop
async def test_many_who_ask_at_once_share_the_scan_under_way_and_the_next(library: Watched) -> None:
    index = LibraryIndex(library, rest=at_once)
    await index.models()
    await held_up(library, index)
    asking = [asyncio.create_task(index.find(f"{UNKNOWN}-{n}")) for n in range(200)]
    await asyncio.sleep(0)
    library.may_go.set()
    assert set(await asyncio.gather(*asking)) == {None}
    assert len(library.scans) == 3  # the first, the one that was held up, and one for all


@in_loop
async def test_a_flood_of_unknown_names_is_answered_without_scans(library: Watched) -> None:
    index = LibraryIndex(library, rest=never_again)
    await index.models()
    for number in range(200):
        assert await index.find(f"{UNKNOWN}-{number}") is None
    assert len(library.scans) == 1


@in_loop
async def test_a_change_of_our_own_does_not_wait(library: Watched) -> None:
    index = LibraryIndex(library, rest=never_again)
    await index.models()
    assert await index.find("beta") is None  # Leaves a scan that waits for its time.
    (library.folder / "beta.gguf").write_bytes(b"GGUF")
    await index.changed()
    assert await index.find("beta") is not None
    assert len(library.scans) == 2


@in_loop
async def test_while_a_scan_does_not_end_the_last_one_answers(
    library: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_FIND_S", 0.01)
    monkeypatch.setattr(index_module, "_LIST_S", 0.01)
    index = LibraryIndex(library, rest=at_once)
    await asyncio.wrap_future(index.refresh())
    await held_up(library, index)
    assert [model.name for model in await index.models()] == ["alpha"]
    assert await index.find("alpha") is not None
    assert await index.find(UNKNOWN) is None


@in_loop
async def test_before_the_first_scan_has_ended_nobody_is_told_that_there_is_no_model(
    library: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_FIND_S", 0.01)
    index = LibraryIndex(library, [FoundModel("opened", Path("opened.gguf"), "path")])
    await held_up(library, index)
    for work in (index.models(), index.find("alpha")):
        with pytest.raises(LibraryNotRead) as caught:
            await work
        assert caught.value.data["retry_after_s"]
    assert await index.find("opened") is not None
    resolving = asyncio.create_task(index.resolve("alpha"))
    await asyncio.sleep(0.05)  # Longer than a request waits.
    assert not resolving.done()
    library.may_go.set()
    assert (await resolving).name == "alpha"


@in_loop
async def test_a_name_that_is_old_starts_a_scan_and_does_not_wait_for_it(
    library: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_STALE_S", -1.0)
    index = LibraryIndex(library, rest=at_once)
    await index.models()
    library.may_go.clear()
    library.began.clear()
    assert await index.find("alpha") is not None
    await asyncio.to_thread(library.began.wait, 60)
    assert len(library.scans) == 2


def test_it_serves_one_event_loop_after_another(library: Watched) -> None:
    index = LibraryIndex(library, rest=at_once)
    for _ in range(2):
        assert asyncio.run(index.find(UNKNOWN)) is None
        assert asyncio.run(index.find("alpha")) is not None


def test_a_scan_that_fails_fails_those_who_wait_for_it_alone(library: Watched) -> None:
    index = LibraryIndex(library, rest=at_once)

    def fail() -> list[FoundModel]:
        raise MemoryError

    async def ask(found: Callable[[], list[FoundModel]]) -> FoundModel | None:
        library.found = found  # type: ignore[method-assign]
        return await index.find("alpha")

    with pytest.raises(MemoryError):
        asyncio.run(ask(fail))
    assert asyncio.run(ask(lambda: [FoundModel("alpha", Path("alpha.gguf"), "path")])) is not None


@in_loop
async def test_resolve_takes_paths_and_says_what_is_near(library: Watched) -> None:
    path = library.folder / "alpha.gguf"
    index = LibraryIndex(library, [FoundModel("opened", path, "path")])
    assert (await index.resolve(str(path))).path == path
    assert (await index.resolve("OPENED")).path == path
    with pytest.raises(ModelNotFound) as caught:
        await index.resolve("opend")
    assert caught.value.data["nearest"] == ["opened"]


def test_slow_scans_rest_longer() -> None:
    assert rest_after(0.01) == pytest.approx(0.1)
    assert rest_after(3600.0) == 60.0
