"""What programs may do by name: pull, delete and copy, and what is refused."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing
from pathlib import Path

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.app.library.adopt import ImportRefused
from hearth.app.library.errors import ModelInUse, OfflineError
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import Library
from hearth.app.library.manager import MOST_PULLS, ModelManager, PullProgress
from hearth.app.library.removal import NotRemovable
from hearth.app.library.sources import Source
from hearth.app.settings import Setting, Settings
from hearth.backends.errors import Busy, CorruptFile, DoesNotFit, HearthError, ModelNotFound
from hearth.backends.remote.server import RemoteServer
from hub_server import Fault, HubServer, Repo

REPO = "org/Tiny-GGUF"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def library(tmp_path: Path, tiny: Path) -> Library:
    """Bundled: guide. In the folder: mine. Of another program: foreign. Remote: far."""
    for path in (
        tmp_path / "bundled" / "guide.f16.gguf",
        tmp_path / "models" / "mine.gguf",
        tmp_path / "lmstudio" / "org" / "repo" / "foreign.gguf",
    ):
        path.parent.mkdir(parents=True)
        shutil.copy(tiny, path)
    return Library(
        tmp_path / "models",
        tmp_path / "bundled",
        [RemoteServer("far", "http://127.0.0.1:1/v1")],
        sources=[
            Source("huggingface", tmp_path / "hub"),
            Source("lmstudio", tmp_path / "lmstudio"),
        ],
    )


def manager(library: Library, **settings: object) -> ModelManager:
    folder = library.folder.parent
    flags = {name: Setting(value, "test") for name, value in settings.items()}
    return ModelManager(
        LibraryIndex(library),
        Settings(folder / "settings.toml").with_flags(flags),  # type: ignore[arg-type]
        folder / "hub",
        folder / "cache",
    )


def names(library: Library) -> set[str]:
    return {model.name for model in library.found()}


async def pull(manager: ModelManager, name: str) -> list[PullProgress]:
    return [progress async for progress in manager.pull(name)]


def offered(hub: HubServer, tiny: Path) -> None:
    data = tiny.read_bytes()
    hub.repos[REPO] = Repo(
        {"Tiny-Q4_K_M.gguf": data, "Tiny-Q8_0.gguf": data + b"\0", "Tiny-F16.gguf": data + b"\0\0"},
        parameters=100_000,
        sizes={"Tiny-F16.gguf": 10**15},
    )


# ---- pull


@in_loop
async def test_a_model_of_the_hub_is_downloaded_and_found(
    hub: HubServer, library: Library, tiny: Path
) -> None:
    offered(hub, tiny)
    ours = manager(library)
    told = await pull(ours, f"{REPO}:q8_0")
    assert {progress.file for progress in told} == {"Tiny-Q8_0.gguf"}
    assert len(told[-1].digest) == 64
    assert told[-1].total_bytes == tiny.stat().st_size + 1
    asked = len(hub.requests)
    assert await pull(ours, "Tiny-Q8_0") == []
    assert len(hub.requests) == asked
    assert "Tiny-Q8_0" in names(library)


@pytest.mark.parametrize("name", ["mine", "MINE.gguf", "guide", "foreign", "org/repo", "far"])
def test_a_model_that_is_here_is_pulled_at_once(library: Library, name: str) -> None:
    assert asyncio.run(pull(manager(library, offline=True), name)) == []


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no-such-model", ModelNotFound),
        ("", ModelNotFound),
        ("../../etc/passwd", ModelNotFound),
        ("/etc/passwd", ModelNotFound),
        ("http://127.0.0.1:1/a/b.gguf", ModelNotFound),
        ("org/none", ModelNotFound),
        (f"{REPO}:Q5_K_M", ModelNotFound),
        (f"{REPO}:F16", DoesNotFit),
    ],
)
def test_what_cannot_be_pulled_is_refused_before_the_download(
    hub: HubServer, library: Library, tiny: Path, name: str, error: type[HearthError]
) -> None:
    offered(hub, tiny)
    with pytest.raises(error):
        asyncio.run(pull(manager(library), name))
    assert hub.sent_bytes == 0


def test_offline_nothing_is_asked(hub: HubServer, library: Library) -> None:
    with pytest.raises(OfflineError):
        asyncio.run(pull(manager(library, offline=True), REPO))
    assert hub.requests == []


@in_loop
async def test_more_pulls_than_may_run_are_told_to_wait_and_a_closed_one_makes_way(
    hub: HubServer, library: Library, tiny: Path
) -> None:
    offered(hub, tiny)
    hub.faults = [Fault("stall", "Tiny-Q8_0.gguf", at=1000, times=99)]
    ours = manager(library)
    async with aclosing(ours.pull(f"{REPO}:Q8_0")) as first:
        assert (await anext(first)).activity in ("downloading", "waiting")
        async with aclosing(ours.pull(f"{REPO}:Q8_0")) as second:
            await anext(second)
            assert MOST_PULLS == 2
            with pytest.raises(Busy) as caught:
                await pull(ours, f"{REPO}:Q4_K_M")
            assert caught.value.data["retry_after_s"]
    hub.released.set()
    assert await pull(ours, f"{REPO}:Q4_K_M")


# ---- delete


@in_loop
async def test_a_model_of_the_library_folder_is_deleted(library: Library) -> None:
    ours = manager(library)
    removal = await ours.delete("MINE", loaded=())
    assert removal.paths == (library.folder / "mine.gguf",)
    with pytest.raises(ModelNotFound):
        await ours.delete("mine", loaded=())
    assert "mine" not in names(library)


@pytest.mark.parametrize("name", ["guide", "foreign", "far"])
def test_models_elsewhere_are_not_deleted(library: Library, name: str) -> None:
    before = names(library)
    with pytest.raises(NotRemovable) as caught:
        asyncio.run(manager(library).delete(name, loaded=()))
    assert caught.value.http_status == 409
    assert names(library) == before


@in_loop
async def test_a_downloaded_model_is_deleted_from_the_shared_cache(
    hub: HubServer, library: Library, tiny: Path
) -> None:
    offered(hub, tiny)
    ours = manager(library)
    await pull(ours, f"{REPO}:Q4_K_M")
    removal = await ours.delete("Tiny-Q4_K_M", loaded=())
    assert removal.is_cached and not any(path.exists() for path in removal.paths)
    assert "Tiny-Q4_K_M" not in names(library)


def test_a_loaded_model_is_not_deleted(library: Library, tmp_path: Path) -> None:
    (tmp_path / "other way").symlink_to(library.folder)
    loaded = [str(tmp_path / "other way" / "mine.gguf")]
    with pytest.raises(ModelInUse) as caught:
        asyncio.run(manager(library).delete("mine", loaded))
    assert caught.value.http_status == 409
    assert "mine" in names(library)


# ---- copy


@pytest.mark.parametrize("name", ["mine", "guide", "foreign"])
@in_loop
async def test_a_copy_is_a_model_of_its_own(library: Library, name: str) -> None:
    ours, before = manager(library), names(library)
    path = await ours.copy(name, "again")
    assert path == library.folder / "again.gguf"
    assert path.read_bytes() == (await ours._index.resolve(name)).path.read_bytes()
    await ours.delete("again", loaded=())
    assert names(library) == before


def test_within_the_library_a_copy_takes_no_more_of_the_disk(library: Library) -> None:
    path = asyncio.run(manager(library).copy("mine", "again"))
    mine = library.folder / "mine.gguf"
    assert path.samefile(mine) or path.stat().st_nlink == 1  # a hard link, or a reflink
    assert {"mine", "again"} <= names(library)


def test_a_copy_of_another_programs_model_leaves_its_name(library: Library) -> None:
    asyncio.run(manager(library).copy("foreign", "again"))
    assert {"foreign", "again"} <= names(library)


@pytest.mark.parametrize(
    "new", ["", "..", "../out", "a/b", "a\\b", ".hidden", "nul\0", "x" * 201, "a\nb", "\udc80"]
)
def test_names_that_could_lead_elsewhere_are_refused(library: Library, new: str) -> None:
    before = sorted(library.folder.parent.rglob("*"))
    with pytest.raises(ImportRefused) as caught:
        asyncio.run(manager(library).copy("mine", new))
    assert caught.value.http_status == 400
    assert sorted(library.folder.parent.rglob("*")) == before


@pytest.mark.parametrize("new", ["mine", "MINE", "mine.gguf", "guide", "foreign", "far"])
def test_nothing_is_overwritten_and_no_name_is_taken(library: Library, new: str) -> None:
    before = sorted(library.folder.rglob("*"))
    with pytest.raises(ImportRefused):
        asyncio.run(manager(library).copy("guide", new))
    assert sorted(library.folder.rglob("*")) == before


def test_what_has_no_files_or_is_damaged_is_not_copied(library: Library) -> None:
    (library.folder / "bad.gguf").write_bytes(b"GGUF")
    for name, error in (("far", ImportRefused), ("none", ModelNotFound), ("bad", CorruptFile)):
        with pytest.raises(error):
            asyncio.run(manager(library).copy(name, "again"))
    assert "again" not in names(library)
