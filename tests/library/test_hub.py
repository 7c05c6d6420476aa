"""Finding models: search, the files of a repository, and what goes wrong with them."""

from __future__ import annotations

import socket
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from hearth.app.exit_codes import ExitCode
from hearth.app.jobs.child import Reporter
from hearth.app.library.download_job import question, work
from hearth.app.library.errors import (
    GatedRepository,
    HubRefused,
    HubUnreachable,
    OfflineError,
    RepositoryNotFound,
)
from hearth.app.library.hub import Download, Hub, RepositoryFile
from hearth.backends.errors import from_info, to_info
from hub_server import HubServer, Repo, etag, git_sha1

MODEL = b"GGUF" + bytes(range(256)) * 300


def a_repo(**facts: Any) -> Repo:
    return Repo({"model-Q4_K_M.gguf": MODEL, "config.json": b"{}\n"}, **facts)


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a connection fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_search_finds_models_by_name(hub: HubServer) -> None:
    hub.repos = {
        "one/Alpha-GGUF": a_repo(downloads=5, parameters=7_000_000_000),
        "two/beta": a_repo(),
        "three/alpha-base": a_repo(downloads=50, tags=("safetensors",), gated=True, licence="mit"),
    }
    first, second = Hub().search("alpha")
    assert (first.repo_id, second.repo_id) == ("one/Alpha-GGUF", "three/alpha-base")
    assert second.gated and second.licence == "mit" and not first.gated
    assert first.parameters == 7_000_000_000 and first.downloads == 5
    assert first.changed_at is not None and first.changed_at.year == 2026


def test_search_can_be_limited_by_number_and_tag(hub: HubServer) -> None:
    hub.repos = {f"a/model-{number}": a_repo() for number in range(5)}
    hub.repos["a/model-other"] = a_repo(tags=("onnx",))
    assert len(Hub().search("model", limit=3)) == 3
    assert len(Hub().search("model", tag="gguf")) == 5


def test_a_repository_tells_each_files_size_and_checksum(hub: HubServer) -> None:
    repo = hub.repos["a/b"] = a_repo(parameters=1000)
    found = Hub().repository("a/b")
    assert found.commit == repo.commit and found.revision == "main"
    assert found.parameters == 1000 and found.context == 4096 and found.licence == "apache-2.0"
    assert not found.is_quantized
    for dtypes, is_quantized in (
        ({"BF16": 100}, False),
        ({"I32": 60, "F16": 30}, True),
        ({"F8_E4M3": 90, "BF16": 10, "F32": 1}, True),
    ):
        hub.repos["a/b"].dtypes = dtypes
        assert Hub().repository("a/b").is_quantized == is_quantized
    model, config = found.files
    assert model.sha256 == model.etag == etag("x.gguf", MODEL) and model.size_bytes == len(MODEL)
    assert config.sha256 is None and config.etag == config.blob_id == git_sha1(b"{}\n")


def test_huggingface_hub_itself_works_against_the_stand_in(hub: HubServer, cache: Path) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    hub.repos["a/b"] = a_repo(gated=True)
    hub.tokens = {"hf_good"}
    for path, data in hub.repos["a/b"].files.items():
        taken = hf_hub_download(
            "a/b", path, cache_dir=cache, endpoint=hub.url, token="hf_good", force_download=True
        )
        assert Path(taken).read_bytes() == data
    assert [model.id for model in HfApi(endpoint=hub.url).list_models(search="b")] == ["a/b"]
    to_blobs = [request for request in hub.requests if request.host == "blobs"]
    assert to_blobs and all("authorization" not in request.headers for request in to_blobs)


def test_a_missing_repository_is_named(hub: HubServer) -> None:
    with pytest.raises(RepositoryNotFound, match="no repository no/such") as caught:
        Hub().repository("no/such")
    assert caught.value.exit_code == ExitCode.MODEL_NOT_FOUND


def test_a_private_repository_opens_with_the_token(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["a/b"] = a_repo(private=True)
    hub.tokens = {"hf_good"}
    with pytest.raises(RepositoryNotFound, match="private"):
        Hub().repository("a/b")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert Hub().repository("a/b").files


def test_a_revision_that_is_not_there_is_said(hub: HubServer) -> None:
    hub.repos["a/b"] = a_repo()
    with pytest.raises(RepositoryNotFound, match="no such revision"):
        Hub().repository("a/b", revision="v9")


@pytest.mark.parametrize("name", ["a/b/c", "-a/b", "a b/c", "../../etc/passwd", "a/b--c", ""])
def test_a_name_that_is_none_is_refused_before_anybody_is_asked(hub: HubServer, name: str) -> None:
    with pytest.raises(RepositoryNotFound):
        Hub().repository(name)
    assert not [request for request in hub.requests if ".." in request.path]


def test_trouble_at_the_hub_is_told_apart(hub: HubServer) -> None:
    with pytest.raises(HubRefused, match="404"):
        Hub(address=f"{hub.url}/elsewhere").search("x")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(HubUnreachable) as caught:
        Hub(address=address).repository("a/b")
    assert caught.value.exit_code == ExitCode.NETWORK


def test_an_answer_that_is_not_a_hubs_is_said(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub_server.json.dumps", lambda _: "<html>Please log in</html>")
    for ask in (lambda: Hub().search("x"), lambda: Hub().repository("a/b")):
        hub.repos["a/b"] = a_repo()
        with pytest.raises(HubUnreachable, match="not a Hub"):
            ask()


@pytest.mark.usefixtures("no_sockets")
def test_offline_opens_no_connection(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    with pytest.raises(OfflineError) as caught:
        Hub(offline=True).search("x")
    assert caught.value.exit_code == ExitCode.NETWORK
    download = Download("a/b", "main", "0" * 40, (RepositoryFile("x.gguf", 1, None, "0" * 40),))
    with pytest.raises(OfflineError):
        work(question(download, tmp_path, hub=Hub(offline=True)), Reporter(BytesIO()))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError):
        Hub().repository("a/b")
    assert not list(tmp_path.glob("models*"))


def test_the_endpoint_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert Hub().endpoint == "https://mirror.example"
    assert Hub(address="http://other").endpoint == "http://other"
    monkeypatch.delenv("HF_ENDPOINT")
    assert Hub().endpoint == "https://huggingface.co"


def test_errors_keep_their_kind_between_processes() -> None:
    error = GatedRepository("gated", "accept", url="https://x")
    again = from_info(to_info(error))
    assert isinstance(again, GatedRepository) and again.data == {"url": "https://x"}
