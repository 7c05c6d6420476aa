"""The offline catalogue: what comes with Hearth, and what a wrong one says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from hearth.app.library.catalogue import Purpose, load_catalogue, pull_command
from hearth.app.library.hub_files import parse_reference
from hearth.app.library.menu import reference_of
from hearth.backends.errors import CorruptFile, ModelNotFound

MODEL = """
[[models]]
name = "tiny-1b"
title = "Tiny 1B"
repo = "org/Tiny-1B-GGUF"
purpose = "chat"
parameters = 1_000_000_000
licence = "mit"
quants = ["Q4_K_M", "Q8_0"]
recommended = "Q4_K_M"
summary = "A tiny one."
"""
BITS = "[bits_per_weight]\nQ4_K_M = 4.89\nQ8_0 = 8.5\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "catalogue.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalogue_that_comes_with_hearth_is_sound() -> None:
    catalogue = load_catalogue()
    assert len(catalogue.entries) == len({entry.name for entry in catalogue.entries}) >= 20
    assert {entry.purpose for entry in catalogue.entries} == set(get_args(Purpose))
    for entry in catalogue.entries:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", entry.name)
        assert all(text.strip() for text in (entry.title, entry.licence, entry.summary))
        assert entry.summary.endswith(".") and "\n" not in entry.summary
        assert entry.recommended in entry.sizes
        assert all(isinstance(n, int) for n in (entry.parameters, entry.active_parameters))
        assert isinstance(entry.context, int) and 0 <= entry.context < 10**8
        assert all(0 < size < 10**13 for size in entry.sizes.values())
        assert parse_reference(entry.repo).repo_id == entry.repo
        assert entry.active_parameters <= entry.parameters
        assert list(entry.sizes.values()) == sorted(entry.sizes.values())
        if entry.shape is not None:
            assert entry.shape.head_size in (64, 128, 256)
            assert entry.context or entry.purpose in ("embedding", "reranker")


def test_sizes_are_parameters_times_bits() -> None:
    entry = load_catalogue().get("Qwen3-4B")
    assert entry is not None
    assert entry.size_bytes == entry.sizes["Q4_K_M"] == round(4.02e9 * 4.89 / 8)
    # The file of the repository has 2,497,280,256 bytes: about is about.
    assert abs(entry.size_bytes / 2_497_280_256 - 1) < 0.05


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(ModelNotFound) as caught:
        reference_of("qwen3-4", load_catalogue())
    assert "qwen3-4b" in caught.value.data["nearest"]
    assert "hearth pull org/name" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("org/name:Q4_K_M", "hearth pull org/name:Q4_K_M"),
        ("org/name", "hearth pull org/name"),
        ("Qwen3-4B", "hearth pull qwen3-4b"),
        ("qwen3-4b:Q8_0", "hearth pull qwen3-4b:Q8_0"),
        ("qwen3-4b:Q9", ""),
        ("what is this", ""),
        ("a/b/c", ""),
        ("org/name; rm -rf", ""),
    ],
)
def test_the_command_that_would_download_it(name: str, command: str) -> None:
    assert pull_command(name) == command


def test_a_catalogue_of_ones_own(tmp_path: Path) -> None:
    [entry] = load_catalogue(write(tmp_path, BITS + MODEL)).entries
    assert (entry.context, entry.shape, entry.active_parameters) == (0, None, 10**9)
    assert entry.sizes == {"Q4_K_M": 611_250_000, "Q8_0": 1_062_500_000}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('licence = "mit"', ""),
        ('licence = "mit"', 'licence = "mit"\nlicense = "mit"'),
        ('licence = "mit"', 'licence = "mit"\nlayers = 5'),
        ("1_000_000_000", '"1B"'),
        ("1_000_000_000", "nan"),
        ('"chat"', '"fun"'),
        ('["Q4_K_M", "Q8_0"]', '["Q4_K_M", "Q9"]'),
        ("[[models]]", "[models]"),
        ("[bits_per_weight]", "[bits]"),
        ("[[models]]", "[[models"),
    ],
)
def test_a_wrong_catalogue_is_a_damaged_installation(tmp_path: Path, old: str, new: str) -> None:
    path = write(tmp_path, (BITS + MODEL).replace(old, new, 1))
    with pytest.raises(CorruptFile, match=r"catalogue\.toml"):
        load_catalogue(path)


def test_a_missing_catalogue_is_a_damaged_installation(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile) as caught:
        load_catalogue(tmp_path / "none.toml")
    assert "install Hearth again" in caught.value.hint
