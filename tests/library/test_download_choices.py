"""What of a repository can be taken, which of it is recommended, and how it is named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from hearth.app.library.errors import ChoiceNotFound, RefusedRepository, RepositoryNotFound
from hearth.app.library.hub import Repository, RepositoryFile
from hearth.app.library.hub_files import (
    SAFETENSORS,
    Reference,
    best_choice,
    find_choice,
    offer,
    parse_reference,
)

TWELVE = {
    "Q2_K": 3.0, "IQ3_XS": 3.3, "Q3_K_M": 3.9, "IQ4_XS": 4.3, "Q4_0": 4.5, "Q4_K_S": 4.6,
    "Q4_K_M": 4.9, "Q5_K_S": 5.5, "Q5_K_M": 5.7, "Q6_K": 6.6, "Q8_0": 8.5, "F16": 16.0,
}  # fmt: skip


def repository(files: dict[str, int], parameters: int | None = None) -> Repository:
    """A repository of files with those sizes."""
    return Repository(
        "a/b",
        "main",
        "0" * 40,
        gated=False,
        licence="mit",
        files=tuple(RepositoryFile(path, size, None, "1" * 40) for path, size in files.items()),
        parameters=parameters,
    )


def of_quants(**sizes: int) -> Repository:
    return repository({f"Model-8B-{name}.gguf": size for name, size in sizes.items()})


def recommended(repository: Repository, most_bytes: float = math.inf) -> str:
    """The name of the choice that is recommended where files of `most_bytes` fit."""
    return best_choice(offer(repository).choices, lambda one: one.size_bytes <= most_bytes).name


def twelve() -> Repository:
    files = {f"M-{name}.gguf": round(bits * 1e9) for name, bits in TWELVE.items()}
    return repository(files, 8_000_000_000)


def test_twelve_quants_are_grouped_and_one_is_recommended() -> None:
    found = offer(twelve())
    assert [choice.name for choice in found.choices] == list(TWELVE)
    groups = {choice.name: choice.group for choice in found.choices}
    assert [name for name in TWELVE if groups[name] == "small"] == ["Q2_K", "IQ3_XS", "Q3_K_M"]
    assert [name for name in TWELVE if groups[name] == "large"] == ["Q6_K", "Q8_0", "F16"]
    assert recommended(twelve()) == "Q4_K_M"
    assert find_choice(found, "a/b", "Q4_K_M").bits_per_weight == pytest.approx(4.9)


@pytest.mark.parametrize(
    ("most", "best"), [(4.95, "Q4_K_M"), (4.7, "Q4_K_S"), (3.5, "IQ3_XS"), (1.0, "Q2_K")]
)
def test_the_recommended_one_is_the_best_that_fits(most: float, best: str) -> None:
    assert recommended(twelve(), most * 1e9) == best


def test_something_is_recommended_where_there_is_no_q4_k_m() -> None:
    assert recommended(of_quants(Q8_0=80, Q6_K=60)) == "Q6_K"
    dynamic = repository({"m-UD-Q4_K_XL.gguf": 50, "m-Q2_K.gguf": 20, "m-BF16.gguf": 160})
    assert recommended(dynamic) == "UD-Q4_K_XL"
    assert recommended(repository({"model.gguf": 5})) == "model"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-2-7b.Q5_0.gguf", "Q5_0"),
        ("model.q8_0.gguf", "Q8_0"),
        ("gemma-fp16.gguf", "F16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("UD-Q3_K_XL/m-UD-Q3_K_XL.gguf", "UD-Q3_K_XL"),
        ("BF16/weights.gguf", "BF16"),
        ("Phi-Q4.gguf", "Phi-Q4"),
    ],
)
def test_quants_are_read_from_names(path: str, name: str) -> None:
    assert [choice.name for choice in offer(repository({path: 10})).choices] == [name]


def test_parts_of_a_split_file_are_one_choice() -> None:
    files = {f"Q4_K_M/m-Q4_K_M-{part:05d}-of-00003.gguf": part for part in (3, 1, 2)}
    (choice,) = offer(repository(files)).choices
    assert choice.name == "Q4_K_M" and choice.size_bytes == 6
    assert [file.size_bytes for file in choice.files] == [1, 2, 3]


def test_a_split_file_without_all_its_parts_is_refused() -> None:
    found = offer(repository({"m-Q8_0-00001-of-00002.gguf": 1, "m-Q4_0.gguf": 1}))
    assert [choice.name for choice in found.choices] == ["Q4_0"]
    assert "1 of its 2 parts" in found.refused[0].reason


def test_projectors_and_importance_matrices_are_no_choices() -> None:
    found = offer(
        repository(
            {"m-Q4_K_M.gguf": 9, "mmproj-F16.gguf": 1, "imatrix.gguf": 1, "m.imatrix.dat": 1}
        )
    )
    assert [choice.name for choice in found.choices] == ["Q4_K_M"]
    assert found.refused == ()


def test_two_models_of_one_quant_go_by_their_files() -> None:
    found = offer(repository({"small-Q4_0.gguf": 1, "big-Q4_0.gguf": 2, "big-Q8_0.gguf": 3}))
    assert [choice.name for choice in found.choices] == ["small-Q4_0", "big-Q4_0", "Q8_0"]


def test_safetensors_are_taken_whole_and_without_code_or_pickles() -> None:
    files = dict.fromkeys(
        (
            *("config.json", "tokenizer.json", "model.safetensors.index.json"),
            *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
            *("consolidated.safetensors", "modeling_custom.py", "pytorch_model.bin", "x.pt"),
            *("onnx/model.safetensors", "README.md", "training_args.bin"),
            *("additional_chat_templates/tool_use.jinja", "other/x.jinja"),
        ),
        10,
    )
    found = offer(repository(files, parameters=20))
    (choice,) = found.choices
    assert choice.name == SAFETENSORS and choice.size_bytes == 60
    assert best_choice(found.choices, lambda _: True) == choice
    suffixes = {PurePosixPath(file.path).suffix for file in choice.files}
    assert suffixes == {".json", ".safetensors", ".jinja"}
    assert "other/x.jinja" not in {file.path for file in choice.files}
    assert "consolidated.safetensors" not in {file.path for file in choice.files}
    assert {file.path for file in found.refused} == {
        *("pytorch_model.bin", "x.pt", "training_args.bin"),
    }


@pytest.mark.parametrize("is_quantized", [False, True])
def test_safetensors_may_be_quantized_already(is_quantized: bool) -> None:
    files = repository({"config.json": 1, "quantize_config.json": 1, "model.safetensors": 100})
    (choice,) = offer(replace(files, is_quantized=is_quantized)).choices
    assert choice.is_quantized == is_quantized and choice.size_bytes == 102


def test_a_repository_of_pickles_is_refused_with_the_reason() -> None:
    with pytest.raises(RefusedRepository, match="can run any code") as caught:
        offer(repository({"config.json": 1, "pytorch_model.bin": 100}))
    assert caught.value.data["refused"] == ["pytorch_model.bin"]
    with pytest.raises(RefusedRepository, match="no model in it"):
        offer(repository({"README.md": 1, "model.safetensors": 5}))


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("org/name", Reference("org/name", "main", "")),
        ("org/name:Q4_K_M", Reference("org/name", "main", "Q4_K_M")),
        ("org/name@v1:sub/file.gguf", Reference("org/name", "v1", "sub/file.gguf")),
        ("https://huggingface.co/org/name/", Reference("org/name", "main", "")),
        ("hf.co/org/na.me:q8_0", Reference("org/na.me", "main", "q8_0")),
    ],
)
def test_references_are_understood(text: str, meaning: Reference) -> None:
    assert parse_reference(text) == meaning


@pytest.mark.parametrize("text", ["name", "", "a/b/c", "a b/c", "https://evil.example/a/b", "/x"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(RepositoryNotFound):
        parse_reference(text)


@pytest.mark.parametrize("wanted", ["Q4_K_M", "q4_k_m", "m-q4_k_m.GGUF", "M-Q4_K_M.gguf"])
def test_a_choice_is_found_by_quant_or_file(wanted: str) -> None:
    assert find_choice(offer(twelve()), "a/b", wanted).name == "Q4_K_M"


def test_a_choice_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ChoiceNotFound) as caught:
        find_choice(offer(twelve()), "a/b", "Q4_K_L")
    near = caught.value.data["nearest"]
    assert isinstance(near, list) and "Q4_K_M" in near and "Did you mean" in caught.value.hint
    both = repository({"m-Q4_0.gguf": 1, "pytorch_model.bin": 1})
    with pytest.raises(ChoiceNotFound, match="is refused"):
        find_choice(offer(both), "a/b", "pytorch_model.bin")
