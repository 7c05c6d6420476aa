"""`/v1/models`, `/health`, and which names a request may use."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from pathlib import Path

import gguf
import pytest
from openai.types import Model

import gguf_builder
from hearth.app.chosen import with_settings
from hearth.app.library.local import FoundModel, Library
from hearth.app.server.catalog import Catalog
from hearth.app.settings import Settings
from hearth.backends.errors import ModelNotFound


def test_the_opened_model_comes_first_then_the_library(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    (tmp_path / "models" / "sub").mkdir(parents=True)
    (tmp_path / "models" / "sub" / "other.gguf").write_bytes(tiny_model.read_bytes())
    listed = made.get("/v1/models").json
    assert listed["object"] == "list"
    names = [Model.model_validate(model, strict=True).id for model in listed["data"]]
    assert names == ["tiny", "guide", "other"]
    assert made.chat(model="OTHER").status == 200
    assert made.host.specs[-1]["path"].endswith("other.gguf")


def test_a_model_with_the_name_of_the_opened_one_is_not_listed(endpoint, tmp_path) -> None:
    made = endpoint()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Tiny.gguf").write_bytes(b"GGUF")
    listed = made.get("/v1/models").json["data"]
    assert [model["id"] for model in listed] == ["tiny", "guide"]
    assert listed[0]["hearth"]["error"] is None


def test_what_is_known_of_a_model_stands_beside(endpoint, tiny_model) -> None:
    worker = {"name": "tiny", "path": str(tiny_model), "info": {"context": 256}}
    made = endpoint(workers=[worker])
    tiny, guide = made.get("/v1/models").json["data"]
    assert tiny["created"] == int(tiny_model.stat().st_mtime)
    assert tiny["hearth"]["size_bytes"] == tiny_model.stat().st_size
    assert (tiny["hearth"]["loaded"], tiny["hearth"]["context"]) == (True, 256)
    assert "chat" in tiny["hearth"]["capabilities"]
    assert (guide["hearth"]["loaded"], guide["hearth"]["quantization"]) == (False, "F16")
    assert guide["hearth"]["context"] is guide["hearth"]["capabilities"] is None
    assert made.get("/v1/models/guide").json == guide
    assert made.get("/v1/models/").json == made.get("/v1/models").json
    assert made.host.specs == []


def test_models_are_listed_without_a_host_and_in_spite_of_bad_files(endpoint, tmp_path) -> None:
    made = endpoint(unreachable="It is away.")
    (tmp_path / "models").mkdir(exist_ok=True)
    (tmp_path / "models" / "bad.gguf").write_bytes(b"GGUF and no more")
    listed = made.get("/v1/models").json["data"]
    for model in listed:
        Model.model_validate(model, strict=True)
    assert [model["hearth"]["loaded"] for model in listed] == [None] * 3
    assert listed[-1]["id"] == "bad" and listed[-1]["hearth"]["error"]


def test_a_part_that_was_being_copied_is_read_again(endpoint, tmp_path, monkeypatch) -> None:
    parts = functools.partial(gguf.GGUFWriter, split_max_tensors=8)
    monkeypatch.setattr(gguf_builder.gguf, "GGUFWriter", parts)
    made, folder = endpoint(), tmp_path / "models"
    folder.mkdir(exist_ok=True)
    gguf_builder.tiny_llama(folder / "big.gguf")
    last = max(folder.iterdir())
    whole = last.read_bytes()
    last.write_bytes(whole[:200])
    assert made.get("/v1/models/big").json["hearth"]["error"]
    last.write_bytes(whole)
    copied = made.get("/v1/models/big").json["hearth"]
    assert not copied.get("error")
    assert copied["size_bytes"] == sum(part.stat().st_size for part in folder.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, names of files are Unicode")
def test_a_file_whose_name_is_no_unicode_is_left_out(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    (tmp_path / "models").mkdir(exist_ok=True)
    name = os.fsdecode(b"bad\xff.gguf")
    (tmp_path / "models" / name).write_bytes(tiny_model.read_bytes())
    assert [model["id"] for model in made.get("/v1/models").json["data"]][1:] == ["guide"]


def test_one_model(endpoint) -> None:
    made = endpoint()
    assert made.get("/v1/models/guide").json["owned_by"] == "bundled"
    missing = made.get("/v1/models/gpt-4")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_names_with_a_folder(endpoint, tmp_path, tiny_model) -> None:
    made = endpoint()
    for folder in ("a", "b"):
        (tmp_path / "models" / folder).mkdir(parents=True)
        (tmp_path / "models" / folder / "x.gguf").write_bytes(tiny_model.read_bytes())
    assert made.get("/v1/models/a/x").json["id"] == "a/x"


def test_all_requests_for_a_model_load_it_alike(endpoint) -> None:
    made = endpoint(flags={"context": 256, "threads": 2})
    made.chat()
    made.chat(temperature=0)
    assert made.host.specs[0] == made.host.specs[1]
    assert made.host.specs[0]["settings"]["context"] == 256


def test_health(endpoint) -> None:
    assert endpoint().get("/health").json["status"] == "ok"
    sick = endpoint(unreachable="The host does not answer.").get("/health")
    assert sick.status == 503 and sick.error["code"] == "host_unreachable"


def test_an_alias_is_another_name_and_never_hides_one(tmp_path, tiny_model) -> None:
    opened = FoundModel("tiny", tiny_model, "path")
    settings = Settings(tmp_path / "settings.toml")
    aliases = {"gpt-4o": "Tiny", "claude-*": "tiny", "guide": "tiny", "lost": "nowhere"}
    library = Library(tmp_path, aliases=aliases)
    catalog = Catalog(library, opened, lambda found: with_settings(found, settings))

    async def find(name: str) -> str:
        return (await catalog.find(name)).found.name

    assert asyncio.run(find("GPT-4o")) == "tiny"
    assert asyncio.run(find("claude-haiku-4")) == "tiny"
    assert asyncio.run(find("guide")) == "guide"
    with pytest.raises(ModelNotFound):
        asyncio.run(find("lost"))


def test_no_request_looks_at_the_disk_on_the_event_loop(endpoint, monkeypatch) -> None:
    made = endpoint()
    threads = set()

    def watched(function):
        def call(*args, **kwargs):
            threads.add(threading.current_thread())
            return function(*args, **kwargs)

        return call

    for owner, name in ((os, "scandir"), (os, "lstat"), (Path, "stat"), (Path, "is_dir")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    for path in ("/v1/models", "/v1/models/guide", "/api/tags", "/api/ps", "/v1/model/info"):
        assert made.get(path).status == 200
    assert made.get("/v1/models/none").status == 404
    assert made.get("/openapi.json").status == 200
    assert made.get("/v1/cache/stats?model=guide").status == 200
    assert made.post("/api/show", {"model": "guide"}).status == 200
    assert made.chat(model="none").status == 404
    assert threads and threading.main_thread() not in threads
