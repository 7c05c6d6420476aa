"""The defaults that a model's files recommend are read, and invalid ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import tiny_llama
from hearth.backends.errors import CorruptFile
from hearth.quant.generation_defaults import (
    GenerationDefaults,
    gguf_generation_defaults,
    read_generation_defaults,
)
from hearth.quant.gguf.reader import read_header


def read(folder: Path, **values: Any) -> GenerationDefaults:
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return read_generation_defaults(folder)


def test_all_of_it_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0,
        repetition_penalty=1.05,
        eos_token_id=[7, 8],
        transformers_version="5.0.0",
    )
    assert found == GenerationDefaults(0.6, 20, 0.95, 0.0, 1.05, frozenset((7, 8)))


def test_one_end_token_may_stand_alone(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=3).eos_ids == {3}


def test_no_sampling_is_temperature_zero(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=False, temperature=0.7).temperature == 0
    assert read(tmp_path, do_sample=True, temperature=0.7).temperature == 0.7


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path) == GenerationDefaults()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "warm"),
        ("temperature", 10**400),
        ("top_k", 1.5),
        ("top_p", True),
        ("min_p", [0.1]),
        ("eos_token_id", "end"),
        ("eos_token_id", [-1]),
        ("eos_token_id", [True]),
        ("repetition_penalty", float("nan")),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(CorruptFile, match=name):
        read(tmp_path, **{name: value})


def test_a_gguf_file_may_say_it_too(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40}
    path = tiny_llama(tmp_path / "m.gguf", extra=extra)
    assert gguf_generation_defaults(read_header(path)) == GenerationDefaults(0.5, 40)
