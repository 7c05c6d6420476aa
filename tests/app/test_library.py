"""The local library: names, paths, and what is refused and why."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

from hearth.app.library.local import Library
from hearth.backends.errors import CorruptFile, ModelNotFound, UnsupportedModel


@pytest.fixture
def library(tmp_path: Path, tiny_model: Path) -> Library:
    """Bundled: guide. In the folder: Alpha, sub/beta, and gamma twice."""
    bundled, models = tmp_path / "bundled", tmp_path / "models"
    for path in (
        bundled / "guide.f16.gguf",
        models / "Alpha.gguf",
        models / "sub" / "beta.GGUF",
        models / "one" / "gamma.gguf",
        models / "two" / "gamma.gguf",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tiny_model, path)
    return Library(models, bundled)


def test_all_models_are_listed_with_their_header(library: Library) -> None:
    models = {model.name: model for model in library.list()}
    assert list(models) == ["guide", "Alpha", "beta", "one/gamma", "two/gamma"]
    alpha = models["Alpha"]
    assert (alpha.origin, alpha.architecture, alpha.file_type, alpha.context) == (
        "library",
        "llama",
        "F32",
        512,
    )
    assert alpha.parameters > 100_000
    assert alpha.size_bytes == alpha.path.stat().st_size
    assert alpha.error == ""
    assert models["guide"].origin == "bundled"


def test_a_missing_folder_is_an_empty_library(tmp_path: Path) -> None:
    assert list(Library(tmp_path / "none", tmp_path / "no bundle").list()) == []


def test_a_bad_file_is_listed_with_its_error(library: Library) -> None:
    (library.folder / "cut.gguf").write_bytes((library.folder / "Alpha.gguf").read_bytes()[:1000])
    models = {model.name: model for model in library.list()}
    assert models["cut"].error
    assert models["cut"].size_bytes == 1000
    assert models["Alpha"].error == ""


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("guide", "guide"),
        ("GUIDE", "guide"),
        ("alpha", "Alpha"),
        ("Alpha.gguf", "Alpha"),
        ("beta", "beta"),
        ("one/gamma", "one/gamma"),
        ("TWO/gamma", "two/gamma"),
    ],
)
def test_names_are_found_whatever_their_case(library: Library, asked: str, name: str) -> None:
    found = library.resolve(asked)
    assert found.name == name
    assert found.path.is_file()


def test_a_path_is_found(
    library: Library, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)
    for asked in (str(tiny_model), "tiny.gguf", "./tiny.gguf"):
        found = library.resolve(asked)
        assert (found.name, found.path, found.origin) == ("tiny", tiny_model, "path")


def test_of_a_split_model_the_first_part_stands_for_all(library: Library, tiny_model: Path) -> None:
    for part in (1, 2):
        shutil.copy(tiny_model, library.folder / f"big-0000{part}-of-00002.gguf")
    assert [model.name for model in library.found() if "big" in model.name] == ["big"]
    assert library.resolve("big").path.name == "big-00001-of-00002.gguf"


def test_two_models_of_one_name_must_be_told_apart(library: Library) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.resolve("gamma")
    assert "one/gamma, two/gamma" in caught.value.hint


def test_every_listed_name_finds_its_own_file(library: Library, tiny_model: Path) -> None:
    for name in ("guide.gguf", "big.gguf", "big-00001-of-00002.gguf"):
        shutil.copy(tiny_model, library.folder / name)
    found = library.found()
    names = [model.name for model in found]
    assert {"guide", "guide.gguf", "big", "big.gguf"} <= set(names)
    assert [library.resolve(name) for name in names] == found


def test_an_unknown_name_gets_the_nearest_and_the_way_to_add_one(library: Library) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.resolve("alhpa")
    assert '"alhpa"' in caught.value.message
    assert "Did you mean Alpha?" in caught.value.hint
    assert str(library.folder) in caught.value.hint
    assert caught.value.exit_code == 3
    assert caught.value.data["nearest"] == ["Alpha"]


def test_a_missing_bundled_model_is_an_incomplete_installation(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        Library(tmp_path, tmp_path).resolve("guide")
    assert "install Hearth again" in caught.value.hint


@pytest.mark.parametrize(
    "asked", ["./no.gguf", "folder/no.gguf", "~/surely-not-here.gguf", "/no/such"]
)
def test_a_missing_path_is_named(library: Library, asked: str) -> None:
    with pytest.raises(ModelNotFound, match="There is no file"):
        library.resolve(asked)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".pkl", ".ckpt", ".gguf", ".model"])
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_pickles_are_refused_whatever_they_are_called(
    library: Library, tmp_path: Path, suffix: str, kind: str
) -> None:
    path = tmp_path / f"model{suffix}"
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02.")
    with pytest.raises(UnsupportedModel, match="can run any code"):
        library.resolve(str(path))


def test_a_pickle_suffix_is_enough_to_be_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"anything")
    with pytest.raises(UnsupportedModel, match="pickle"):
        library.resolve(str(path))


def test_other_files_are_refused_with_the_reason(library: Library, tmp_path: Path) -> None:
    safetensors, text, empty = tmp_path / "m.safetensors", tmp_path / "m.txt", tmp_path / "m.gguf"
    safetensors.write_bytes(b"\x10" + bytes(20))
    text.write_text("hello")
    empty.write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"without the config\.json"):
        library.resolve(str(safetensors))
    with pytest.raises(UnsupportedModel, match="not a model file"):
        library.resolve(str(text))
    with pytest.raises(CorruptFile, match="not a GGUF file"):
        library.resolve(str(empty))
    with pytest.raises(UnsupportedModel, match="a folder with GGUF files"):
        library.resolve(str(tmp_path))
