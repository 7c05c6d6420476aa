"""Models of other programs: found where they lie, named shortly, and never in the way."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hearth.app.library.local import Library
from hearth.app.library.model_files import MAX_DEPTH
from hearth.app.library.sources import Source, find_sources, hub_cache, stored_models
from hearth.backends.errors import ModelNotFound

DIGEST = "ab" * 32
COMMIT, OLD_COMMIT = "c" * 40, "0" * 40
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


def file(path: Path, content: bytes = b"GGUF" + bytes(60)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def cached(hub: Path, repo: str, name: str, commit: str = COMMIT, content: str = "b1") -> Path:
    """A file as `huggingface_hub` keeps it: a link in a snapshot to a blob."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / content
    if not blob.exists():
        file(blob, b"GGUF" + content.encode())
    link = folder / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    file(folder / "refs" / "main", COMMIT.encode())
    return link


def manifest(ollama: Path, place: str, digest: str = DIGEST) -> None:
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "ee" * 32},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    path = ollama / "manifests" / place
    file(path, json.dumps({"schemaVersion": 2, "layers": layers}).encode())


def found(*sources: Source) -> dict[str, tuple[str, str]]:
    """Store and repository by name."""
    return {model.name: (model.origin, model.repo) for model in stored_models(sources)}


@needs_links
def test_the_hugging_face_cache(tmp_path: Path) -> None:
    cached(tmp_path, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")
    cached(tmp_path, "org/big", "BF16/big-BF16-00001-of-00002.gguf", content="p1")
    cached(tmp_path, "org/big", "BF16/big-BF16-00002-of-00002.gguf", content="p2")
    cached(tmp_path, "org/big", "mmproj-F16.gguf", content="eye")
    file(tmp_path / "datasets--org--set" / "snapshots" / COMMIT / "odd.gguf")
    assert found(Source("huggingface", tmp_path)) == {
        "Qwen3-0.6B-Q8_0": ("huggingface", "Qwen/Qwen3-0.6B-GGUF"),
        "big-BF16": ("huggingface", "org/big"),
    }


@needs_links
def test_of_two_revisions_the_branch_has_the_short_name(tmp_path: Path) -> None:
    cached(tmp_path, "org/m", "m.gguf", OLD_COMMIT, "old")
    cached(tmp_path, "org/m", "m.gguf", COMMIT, "new")
    cached(tmp_path, "org/m", "same.gguf", OLD_COMMIT, "same")
    cached(tmp_path, "org/m", "same.gguf", COMMIT, "same")
    models = {model.name: model.path for model in stored_models([Source("huggingface", tmp_path)])}
    assert set(models) == {"m", "m@0000000", "same"}
    assert models["m"].read_bytes() == b"GGUFnew"


def test_lm_studio(tmp_path: Path) -> None:
    file(tmp_path / "lmstudio-community" / "Phi-4-GGUF" / "Phi-4-Q4_K_M.gguf")
    file(tmp_path / "loose.gguf")
    assert found(Source("lmstudio", tmp_path)) == {
        "Phi-4-Q4_K_M": ("lmstudio", "lmstudio-community/Phi-4-GGUF"),
        "loose": ("lmstudio", ""),
    }


def test_ollama(tmp_path: Path) -> None:
    blob = file(tmp_path / "blobs" / f"sha256-{DIGEST}")
    manifest(tmp_path, "registry.ollama.ai/library/qwen3/0.6b")
    manifest(tmp_path, "registry.ollama.ai/library/qwen3/latest")
    manifest(tmp_path, "registry.ollama.ai/library/gone/1b", "cd" * 32)
    [model] = stored_models([Source("ollama", tmp_path)])
    assert (model.name, model.path) == ("qwen3:0.6b", blob)
    library = Library(tmp_path / "none", tmp_path, sources=[Source("ollama", tmp_path)])
    for asked in ("qwen3:0.6b", "Qwen3", "qwen3:latest"):
        assert library.resolve(asked).path == blob


def test_ollama_names_of_other_places(tmp_path: Path) -> None:
    for number, place in enumerate(
        ["registry.ollama.ai/me/own/latest", "hf.co/org/model-GGUF/Q4_K_M"]
    ):
        digest = f"{number:064x}"
        file(tmp_path / "blobs" / f"sha256-{digest}")
        manifest(tmp_path, place, digest)
    assert found(Source("ollama", tmp_path)) == {
        "me/own:latest": ("ollama", ""),
        "hf.co/org/model-GGUF:Q4_K_M": ("ollama", "org/model-GGUF"),
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"layers": 5}',
        b'{"layers": [5]}',
        b'{"layers": [{}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 5}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model",'
        b' "digest": "sha256:../../secret"}]}',
    ],
)
def test_an_odd_manifest_is_left_out(tmp_path: Path, content: bytes) -> None:
    file(tmp_path / "manifests" / "registry.ollama.ai" / "library" / "odd" / "1b", content)
    assert found(Source("ollama", tmp_path)) == {}


def test_the_cache_of_llama_cpp(tmp_path: Path) -> None:
    file(tmp_path / "manifest=ggml-org=gemma-3-1b-it-GGUF=latest.json", b"{}")
    file(tmp_path / "ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf")
    file(tmp_path / "ggml-org_gemma-3-1b-it-GGUF_mmproj-model-f16.gguf")
    file(tmp_path / "no_manifest_here.gguf")
    assert found(Source("llama.cpp", tmp_path)) == {
        "gemma-3-1b-it-Q4_K_M": ("llama.cpp", "ggml-org/gemma-3-1b-it-GGUF"),
        "no_manifest_here": ("llama.cpp", ""),
    }


def test_a_folder_is_searched_to_a_bounded_depth(tmp_path: Path) -> None:
    file(tmp_path.joinpath(*["d"] * MAX_DEPTH, "deep.gguf"))
    file(tmp_path.joinpath(*["d"] * (MAX_DEPTH + 1), "too-deep.gguf"))
    file(tmp_path / ".hidden" / "secret.gguf")
    assert found(Source("folder", tmp_path)) == {"deep": ("folder", "")}


@needs_links
def test_links_in_a_circle_and_to_nothing_are_no_trouble(tmp_path: Path) -> None:
    file(tmp_path / "a" / "model.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "gone.gguf")
    (tmp_path / "twice.gguf").symlink_to(tmp_path / "a" / "model.gguf")
    assert len(found(Source("folder", tmp_path))) == 1


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="the system must keep people out"
)
def test_a_folder_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    file(tmp_path / "open" / "model.gguf")
    closed = file(tmp_path / "closed" / "model2.gguf").parent
    closed.chmod(0)
    try:
        assert set(found(Source("folder", tmp_path))) == {"model"}
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("store", ["huggingface", "lmstudio", "ollama", "llama.cpp", "folder"])
def test_a_source_that_is_not_there_or_is_a_file_has_nothing(tmp_path: Path, store) -> None:
    plain = file(tmp_path / "plain")
    assert found(Source(store, tmp_path / "none"), Source(store, plain)) == {}
    assert found(Source(store, Path("a\0b"))) == {}


def test_where_the_programs_keep_their_models(tmp_path: Path) -> None:
    home = {"HOME": "/home/ana", "USERPROFILE": "/home/ana"}
    places = {(source.store, source.folder.as_posix()) for source in find_sources(home)}
    assert ("lmstudio", "/home/ana/.lmstudio/models") in places
    assert ("ollama", "/home/ana/.ollama/models") in places
    moved = find_sources(
        {**home, "HF_HOME": "/big/hf", "OLLAMA_MODELS": "/big/ollama", "LLAMA_CACHE": "/big/ll"},
        ["/big/gguf"],
    )
    places = {(source.store, source.folder.as_posix()) for source in moved}
    assert {
        ("huggingface", "/big/hf/hub"),
        ("ollama", "/big/ollama"),
        ("llama.cpp", "/big/ll"),
        ("folder", "/big/gguf"),
    } <= places


def test_the_shared_cache_is_read_where_downloads_go_elsewhere() -> None:
    found = [
        source.folder.as_posix()
        for source in find_sources({"HEARTH_HOME": "/hearth", "XDG_CACHE_HOME": "/x"})
        if source.store == "huggingface"
    ]
    assert found == ["/hearth/cache/huggingface/hub", "/x/huggingface/hub"]


def test_the_tests_do_not_see_the_developers_own_models(hearth_home: Path) -> None:
    for source in find_sources():
        assert source.folder.is_relative_to(hearth_home)
    assert hub_cache().is_relative_to(hearth_home)


@needs_links
def test_a_repository_of_the_cache_is_found_by_its_name(tmp_path: Path) -> None:
    for quant in ("Q4_K_M", "Q8_0", "IQ4_XS"):
        cached(tmp_path, "Qwen/Qwen3-4B-GGUF", f"Qwen3-4B-{quant}.gguf", content=quant)
    cached(tmp_path, "org/one", "one-f16.gguf", content="one")
    library = Library(tmp_path / "none", tmp_path, sources=[Source("huggingface", tmp_path)])
    assert library.resolve("qwen/qwen3-4b-gguf:q8_0").name == "Qwen3-4B-Q8_0"
    assert library.resolve("qwen3-4b:Q4_K_M").name == "Qwen3-4B-Q4_K_M"
    assert library.resolve("org/one").name == "one-f16"
    assert library.resolve("org/one").repo == "org/one"
    with pytest.raises(ModelNotFound) as several:
        library.resolve("Qwen/Qwen3-4B-GGUF")
    assert "Qwen3-4B-IQ4_XS, Qwen3-4B-Q4_K_M, Qwen3-4B-Q8_0" in several.value.hint
    with pytest.raises(ModelNotFound) as missing:
        library.resolve("Qwen/Qwen3-4B-GGUF:Q6_K")
    assert "`hearth pull Qwen/Qwen3-4B-GGUF:Q6_K`" in missing.value.hint
    assert missing.value.data["pull"] == "hearth pull Qwen/Qwen3-4B-GGUF:Q6_K"


def test_names_are_unique_and_the_library_comes_first(tmp_path: Path) -> None:
    library = tmp_path / "library"
    file(library / "same.gguf")
    studio, folder = tmp_path / "studio", tmp_path / "folder"
    file(studio / "org" / "repo" / "same.gguf")
    file(studio / "org" / "two" / "same.gguf")
    file(folder / "x" / "same.gguf")
    file(folder / "x" / "deeper" / "same.gguf")
    models = Library(
        library, tmp_path, sources=[Source("lmstudio", studio), Source("folder", folder)]
    )
    names = [model.name for model in models.found()]
    assert names[:3] == ["same", "org/repo/same", "org/two/same"]
    assert len({name.lower() for name in names}) == 5
    assert [models.resolve(name) for name in names] == models.found()


def test_a_name_that_several_in_the_library_share_stays_ambiguous(tmp_path: Path) -> None:
    for place in ("library/one", "library/two", "folder"):
        file(tmp_path / place / "gamma.gguf")
    models = Library(
        tmp_path / "library", tmp_path, sources=[Source("folder", tmp_path / "folder")]
    )
    with pytest.raises(ModelNotFound, match="3 models go by the name gamma"):
        models.resolve("gamma")


@needs_links
def test_what_the_library_links_to_is_listed_once(tmp_path: Path) -> None:
    original = file(tmp_path / "folder" / "model.gguf")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "mine.gguf").symlink_to(original)
    models = Library(
        tmp_path / "library", tmp_path, sources=[Source("folder", tmp_path / "folder")]
    )
    assert [model.name for model in models.found()] == ["mine"]
