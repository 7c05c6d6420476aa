"""`/api/pull`, `/api/delete` and `/api/copy`: actions and refusals."""

from __future__ import annotations

import json
import shutil

import pytest

import asgi
from hearth.app.library.manager import ModelManager, PullProgress


def put(tmp_path, tiny_model, name: str) -> None:
    (tmp_path / "models").mkdir(exist_ok=True)
    shutil.copy(tiny_model, tmp_path / "models" / f"{name}.gguf")


def names(made) -> set[str]:
    listed = made.get("/api/tags").json["models"]
    return {one["name"].removesuffix(":latest") for one in listed}


def delete(made, name: str) -> asgi.Reply:
    return made.send("DELETE", "/api/delete", body=json.dumps({"model": name}).encode())


def copy(made, source: str, destination: str) -> asgi.Reply:
    return made.post("/api/copy", {"source": source, "destination": destination})


def pull(made, name: str, **more) -> asgi.Reply:
    return made.post("/api/pull", {"name": name, **more})


@pytest.mark.parametrize("manage", [False, True])
@pytest.mark.parametrize("name", ["tiny", "TINY:latest", "guide"])
def test_a_present_model_is_pulled_at_once(endpoint, name, manage) -> None:
    made = endpoint(manage=manage, flags={"offline": True})
    assert pull(made, name, stream=False).json == {"status": "success"}
    assert json.loads(pull(made, name).body) == {"status": "success"}


@pytest.mark.parametrize("prefix", ["", "hf.co/", "huggingface.co/"])
def test_the_progress_of_a_download_is_streamed(endpoint, monkeypatch, prefix) -> None:
    asked = []

    async def progress(manager: ModelManager, name: str):
        asked.append(name)
        yield PullProgress("downloading", "a.gguf", "a" * 64, 10, 30)
        yield PullProgress("checking", "config.json", "b" * 40, 30, 30)

    monkeypatch.setattr(ModelManager, "pull", progress)
    made = endpoint(manage=True)
    reply = pull(made, f"{prefix}org/Tiny-GGUF:Q8_0", insecure=True)
    first, *rest, last = map(json.loads, reply.body.splitlines())
    assert asked == ["org/Tiny-GGUF:Q8_0"] and first == {"status": "pulling manifest"}
    assert [(one["digest"], one["completed"], one["total"]) for one in rest] == [
        (f"sha256:{'a' * 64}", 10, 30),
        (f"sha1:{'b' * 40}", 30, 30),
    ]
    assert last == {"status": "success", "notices": ["insecure has no effect."]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "status"), [("no-such", 404), ("../etc", 403), ("org/x", 403)])
def test_what_cannot_be_pulled_is_refused(endpoint, name, status, stream) -> None:
    made = endpoint(manage=True, flags={"offline": True})
    reply = pull(made, name, stream=stream)
    assert reply.status == status and reply.json["error"]


def test_a_copy_is_a_model_that_can_be_deleted(endpoint, tmp_path, tiny_model) -> None:
    put(tmp_path, tiny_model, "mine")
    made = endpoint(manage=True)
    assert copy(made, "mine:latest", "again:latest").json == {"status": "success"}
    assert {"mine", "again"} <= names(made)
    assert delete(made, "again").json == {"status": "success"}
    assert "mine" in names(made) and "again" not in names(made)
    assert copy(made, "mine", "../out").status == 400
    assert copy(made, "absent", "x").status == delete(made, "absent").status == 404


@pytest.mark.parametrize("name", ["guide", "tiny"])
def test_only_files_of_the_library_are_deleted(endpoint, name) -> None:
    made = endpoint(manage=True)
    assert delete(made, name).status == 409 and name in names(made)


def test_a_loaded_model_is_not_deleted(endpoint, tmp_path, tiny_model) -> None:
    put(tmp_path, tiny_model, "mine")
    worker = {"name": "mine", "path": str(tmp_path / "models" / "mine.gguf")}
    made = endpoint(manage=True, workers=[worker])
    reply = delete(made, "mine")
    assert reply.status == 409 and reply.json["code"] == "model_in_use" and "mine" in names(made)


def test_nothing_is_changed_where_clients_may_not(endpoint, tmp_path, tiny_model) -> None:
    put(tmp_path, tiny_model, "mine")
    made = endpoint()
    replies = [
        *(pull(made, "absent"), pull(made, "absent", stream=False)),
        *(delete(made, "mine"), copy(made, "mine", "again")),
    ]
    assert {reply.status for reply in replies} == {403}
    assert all("--manage" in reply.json["error"] for reply in replies)
    assert "mine" in names(made)
