"""Folders of safetensors in the library: found wherever models lie, named, imported and deleted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hearth.app.library import fit
from hearth.app.library.adopt import ImportRefused, adopt, plan_adoption
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.fit import Room, fit_of_folder
from hearth.app.library.local import Library
from hearth.app.library.removal import plan_removal, remove
from hearth.app.library.sources import Source
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import CorruptFile, InvalidParameter, ModelNotFound, UnsupportedModel
from hearth.backends.native.model_folder import DTYPE_BYTES, read_model_folder, weight_bytes
from hearth.kernels.cpu.layouts import multiplied
from hearth.quant.stored import CODES
from model_folders import CONFIG, write_folder, write_safetensors
from quantized_checkpoints import gptq, gptq_config, quantize_folder
from tiny_folders import change_json, tiny_folder

COMMIT = "c" * 40
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "models").mkdir()
    sources = [Source("huggingface", tmp_path / "hub"), Source("lmstudio", tmp_path / "lm")]
    return Library(tmp_path / "models", tmp_path / "bundled", sources=sources)


def cached(library: Library, repo: str, **config: object) -> Path:
    """A repository as `huggingface_hub` keeps it: links in a snapshot to blobs."""
    place = library.sources[0].folder / f"models--{repo.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    write_folder(place / "made", **config)
    for number, path in enumerate(sorted((place / "made").iterdir())):
        blob = place / "blobs" / str(number)
        blob.parent.mkdir(exist_ok=True)
        path.rename(blob)
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    (place / "made").rmdir()
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return snapshot


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_folder_is_listed_with_what_its_headers_say(library: Library) -> None:
    folder = write_folder(library.folder / "Tiny", shards=2)
    (model,) = library.list()
    assert (model.name, model.path, model.origin) == ("Tiny", folder, "library")
    assert (model.architecture, model.file_type, model.context) == ("llama", "BF16", 512)
    assert model.parameters > 100_000 and model.error == ""
    files = folder.glob("*.safetensors")
    assert model.size_bytes == sum(file.stat().st_size for file in files)


def test_what_is_wrong_with_a_folder_is_said(library: Library) -> None:
    write_folder(library.folder / "whisper", model_type="whisper")
    cut = write_folder(library.folder / "cut", shards=2)
    (cut / "model-00001-of-00002.safetensors").unlink()
    models = {model.name: model for model in library.list()}
    assert "whisper" in models["whisper"].error and models["whisper"].size_bytes > 10_000
    assert "missing" in models["cut"].error


def test_what_was_read_is_remembered_until_a_file_changes(library: Library, tmp_path: Path) -> None:
    folder = write_folder(library.folder / "Tiny")
    known = Library(library.folder, tmp_path, facts_file=tmp_path / "cache" / "facts.json")
    first = known.list()
    stored = json.loads((tmp_path / "cache" / "facts.json").read_text())
    stored["models"][str(folder)]["facts"]["architecture"] = "remembered"
    (tmp_path / "cache" / "facts.json").write_text(json.dumps(stored))
    assert known.list()[0].architecture == "remembered"
    (folder / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 99}))
    again = known.list()
    assert (first[0].context, again[0].context) == (512, 99)


def test_it_is_found_by_name_by_path_and_by_one_of_its_files(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(library.folder / "sub" / "Tiny")
    for typed in ("tiny", str(folder), str(folder / "model.safetensors"), f"{folder}/"):
        assert library.resolve(typed).path == folder
        assert library.resolve(typed).name == "Tiny"
    monkeypatch.chdir(folder)
    assert library.resolve(".").path == folder


def test_parts_of_a_model_are_no_models(library: Library) -> None:
    folder = write_folder(library.folder / "Tiny")
    write_folder(folder / "2_Dense")
    (folder / "original").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "original")
    adapter = library.folder / "adapter"
    adapter.mkdir()
    (adapter / "config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    assert [model.name for model in library.found()] == ["Tiny"]


def test_two_of_one_name_are_told_apart(library: Library) -> None:
    write_folder(library.folder / "one" / "Tiny")
    write_folder(library.folder / "two" / "Tiny")
    assert [model.name for model in library.found()] == ["one/Tiny", "two/Tiny"]


def test_a_folder_named_like_the_bundled_model_has_another_name(library: Library) -> None:
    guide = write_folder(library.folder / "guide")
    [model] = Library(library.folder).list()[1:]
    assert model.path == guide and Library(library.folder).resolve(model.name).path == guide
    assert Library(library.folder).resolve("guide").origin == "bundled"


@needs_links
def test_snapshots_of_the_hub_are_called_as_their_repository(library: Library) -> None:
    snapshot = cached(library, "org/Tiny-1B")
    cached(library, "org/clip", model_type="clip")
    (model,) = library.found()
    assert (model.name, model.origin, model.repo) == ("Tiny-1B", "huggingface", "org/Tiny-1B")
    for typed in ("tiny-1b", "org/tiny-1b", "org/Tiny-1B:safetensors", str(snapshot)):
        assert library.resolve(typed).path == snapshot
        assert library.resolve(typed).name == "Tiny-1B"
    with pytest.raises(ModelNotFound):
        library.resolve("org/Tiny-1B:Q4_K_M")


def test_folders_of_lm_studio_are_used_in_place(library: Library) -> None:
    write_folder(library.sources[1].folder / "org" / "Tiny")
    (model,) = library.found()
    assert (model.name, model.origin, model.repo) == ("Tiny", "lmstudio", "org/Tiny")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("pytorch_model.bin", "config.json"), "pickle"),
        (("model.safetensors",), r"not the config\.json"),
        (("m.gguf",), "GGUF files"),
        (("README.md",), "without a model"),
    ],
)
def test_other_folders_are_refused_with_the_reason(
    library: Library, tmp_path: Path, files: tuple[str, ...], said: str
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    with pytest.raises(UnsupportedModel, match=said):
        library.resolve(str(folder))


@pytest.mark.parametrize("way", ["copy", "move"])
def test_an_imported_folder_is_there_as_a_whole(way: str, library: Library, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "Tiny", shards=2)
    (source / "tokenizer.json").write_text("{}")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (source / "README.md").write_text("no part of it")
    before = everything(source)
    plan = plan_adoption(source, library, way, "Mine")  # type: ignore[arg-type]
    assert adopt(plan) == library.folder / "Mine"
    assert everything(library.folder / "Mine") == before - {"README.md"}
    assert everything(source) == (before if way == "copy" else {"README.md"})
    assert [model.name for model in library.found()] == ["Mine"]
    assert {path.name for path in library.folder.iterdir()} == {"Mine"}
    with pytest.raises(ImportRefused, match="already"):
        plan_adoption(write_folder(tmp_path / "Mine"), library)


@needs_links
def test_a_linked_folder_stays_where_it_is_also_when_it_is_deleted(
    library: Library, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "Tiny")
    path = adopt(plan_adoption(source, library, "link"))
    assert path.is_symlink() and library.list()[0].error == ""
    removal = plan_removal(library.found()[0], library)
    assert removal.paths == (path,) and removal.frees_bytes == 0
    assert "stays" in removal.keeps[0]
    remove(removal)
    assert not path.is_symlink() and (source / "model.safetensors").exists()


def test_a_damaged_folder_is_not_imported(library: Library, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "Tiny")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CorruptFile):
        plan_adoption(source, library)


def test_deleting_takes_the_files_of_the_model_and_nothing_else(library: Library) -> None:
    folder = write_folder(library.folder / "Tiny", shards=2)
    (folder / "notes.txt").write_text("mine")
    removal = plan_removal(library.found()[0], library)
    assert removal.frees_bytes > 10_000
    remove(removal)
    assert everything(library.folder) == {"Tiny", "Tiny/notes.txt"}


@needs_links
def test_deleting_from_the_hub_s_cache_frees_its_blobs(library: Library) -> None:
    snapshot = cached(library, "org/Tiny-1B")
    removal = plan_removal(library.found()[0], library)
    weights = (snapshot / "model.safetensors").stat().st_size
    assert removal.frees_bytes > weights
    remove(removal)
    assert everything(library.sources[0].folder) == set()


@pytest.fixture
def small_models_have_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it is estimated only for weights that no cache of a processor holds."""
    monkeypatch.setattr(fit, "_LEAST_READ_BYTES", 1)


@pytest.mark.usefixtures("small_models_have_a_speed")
def test_whether_it_fits_follows_from_its_headers(library: Library) -> None:
    folder = read_model_folder(write_folder(library.folder / "Tiny"))
    token = folder.kv_bytes_per_token("f16")
    room = Room(free_bytes=10 << 30, total_bytes=12 << 30, bandwidth=Bandwidth(1e9, 2, "c", "d"))
    found = fit_of_folder(folder, ModelSettings(), room)
    assert (found.state, found.context, found.largest_context) == ("fits", 512, 512)
    assert found.use.weights == folder.weight_bytes("bf16") and found.use.kv == 512 * token
    assert found.speed is not None
    embedding = 299 * 64 * 2
    assert found.speed.tok_per_s == pytest.approx(1e9 / (found.use.weights - embedding), rel=1e-4)
    assert (
        fit_of_folder(folder, ModelSettings(dtype="f32"), room).use.weights == 2 * found.use.weights
    )
    small = fit_of_folder(folder, ModelSettings(), Room(1 << 20, 1 << 30))
    assert (small.state, small.largest_context, small.is_usable) == ("cannot", 0, False)
    with pytest.raises(InvalidParameter):
        fit_of_folder(folder, ModelSettings(kv_type="q4_0"), room)


@pytest.mark.usefixtures("small_models_have_a_speed")
def test_a_quantized_folder(library: Library) -> None:
    """Listed by its format. Codes stay packed where memory is short, and are unpacked elsewhere,
    unless kernels multiply them; the embedding is of plain numbers in any case.
    """
    path = tiny_folder("llama2", library.folder / "Tiny", tie_word_embeddings=False)
    quantize_folder(path, gptq(), gptq_config())
    (model,) = library.list()
    assert (model.file_type, model.architecture, model.error) == ("GPTQ 4-bit", "llama", "")
    folder = read_model_folder(path)
    assert model.parameters == folder.parameters > 100_000
    room = Room(free_bytes=10 << 30, total_bytes=12 << 30, bandwidth=Bandwidth(1e9, 2, "c", "d"))
    for free_bytes, packed in ((10 << 30, multiplied()), (1 << 18, CODES)):
        found = fit_of_folder(folder, ModelSettings(), replace(room, free_bytes=free_bytes))
        assert found.use.weights == weight_bytes(folder.tensors, folder.dtype, packed=packed)
        assert found.speed is not None
        read = found.use.weights - DTYPE_BYTES[folder.dtype] * 64 * 299
        assert found.speed.tok_per_s == pytest.approx(1e9 / read, rel=1e-3)
    assert found.use.weights < path.joinpath("model.safetensors").stat().st_size


def test_a_format_that_cannot_be_read_is_named(library: Library) -> None:
    path = tiny_folder("llama2", library.folder / "Tiny")
    change_json(path / "config.json", quantization_config={"quant_method": "hqq"})
    (model,) = library.list()
    assert '"hqq"' in model.error


@pytest.mark.usefixtures("small_models_have_a_speed")
def test_a_token_reads_only_the_experts_that_it_goes_through(library: Library) -> None:
    path = write_folder(library.folder / "Tiny", model_type="mixtral", num_local_experts=4)
    layers = {
        f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight": (96, 64)
        for layer in range(2)
        for expert in range(4)
    }
    write_safetensors(path / "model.safetensors", {"lm_head.weight": (300, 64), **layers})
    (path / "config.json").write_text(
        json.dumps(
            {
                **CONFIG,
                "model_type": "mixtral",
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "tie_word_embeddings": True,
            }
        )
    )
    room = Room(10 << 30, 12 << 30, bandwidth=Bandwidth(1e9, 2, "c", "d"))
    found = fit_of_folder(read_model_folder(path), ModelSettings(), room)
    read = 2 * (300 * 64 + 2 * 96 * 64)
    assert found.speed is not None and found.speed.tok_per_s == pytest.approx(1e9 / read, rel=1e-3)
