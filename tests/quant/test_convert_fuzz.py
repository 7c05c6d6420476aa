"""The JSON files of a folder with odd values in odd places: a plan, or an error that gives the
reason.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hearth.quant.errors import HearthError
from hearth.quant.gguf.quantize_method import GgufMethod
from tiny_folders import tiny_folder

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
ODD: tuple[Any, ...] = (
    *(None, -1, 0, 1, 3, 2**31, 2**40, 2**70, 1e-320, 1e300, -2.5, True, False),
    *("", "x", "\ud800", "a b", "<|end|>"),
    *([], [1], ["x"], [None], [[]], {}, {"a": 1}, {"content": "<|end|>"}),
)
Place = tuple[str | int, ...]


def places(values: Any, place: Place = ()) -> Iterator[Place]:
    """The places of values in `values`; for long lists the first few."""
    yield place
    if isinstance(values, dict):
        for key in list(values)[:60]:
            yield from places(values[key], (*place, key))
    elif isinstance(values, list):
        for index in range(min(len(values), 5)):
            yield from places(values[index], (*place, index))


def spoilt(values: Any, rng: random.Random) -> Any:
    """`values` with one value replaced."""
    place, value = rng.choice(list(places(values))), copy.deepcopy(rng.choice(ODD))
    if not place:
        return value
    inner = values
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return values


@pytest.mark.parametrize("family", ["llama3", "gemma3", "phi3", "gpt_oss", "qwen3_moe"])
def test_odd_values_are_refused_or_planned(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(family, tmp_path / "tiny")
    rng = random.Random(family)
    refused = 0
    for _ in range(60):
        path = folder / rng.choice(FILES)
        original = path.read_text(encoding="utf-8")
        path.write_text(json.dumps(spoilt(json.loads(original), rng)), encoding="utf-8")
        try:
            plan = GgufMethod().plan(folder, "Q8_0", {})
        except HearthError:
            refused += 1
        else:
            assert plan.size_bytes > 0 and plan.facts()
        path.write_text(original, encoding="utf-8")
    assert refused > 15
