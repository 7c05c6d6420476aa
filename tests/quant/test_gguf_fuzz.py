"""Random damage: a file is read or refused with a typed error, within a bounded time."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf_builder
from gguf_raw import small_llama
from hearth.quant.errors import HearthError
from hearth.quant.gguf.preflight import check

GUIDE = Path(__file__).parents[2] / "assets" / "guide" / "guide.f16.gguf"
MUTATIONS = 2_000
SLOWEST_S = 2.0


def _accepted(path: Path) -> bool:
    """Whether the file passes; anything but a typed error fails the test. Reads all lazy values."""
    started = time.process_time()
    accepted = True
    try:
        file = check(path)
        for value in file.metadata.values():
            if not isinstance(value, int | float | str):
                list(value)
        assert file.parameter_count > 0
        assert file.file_type_name
    except HearthError:
        accepted = False
    assert time.process_time() - started < SLOWEST_S
    return accepted


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants") / "mutant.gguf"


@pytest.mark.parametrize("source", ["small", "tiny"])
def test_mutants_are_read_or_refused(source: str, scratch: Path) -> None:
    if source == "small":
        raw = small_llama()
        original, header_bytes = raw.build(), len(raw.header())
    else:
        tiny = gguf_builder.tiny_llama(scratch, hidden=32, layers=1, heads=2, kv_heads=1)
        header_bytes = check(tiny).data_offset
        original = tiny.read_bytes()
    rng = random.Random(1)
    outcomes = set()
    for _ in range(MUTATIONS // 2):
        scratch.write_bytes(gguf_builder.mutate(original, rng, header_bytes=header_bytes))
        outcomes.add(_accepted(scratch))
    assert outcomes == {True, False}


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=4,
    )
)
def test_overwritten_bytes_are_read_or_refused(
    scratch: Path, edits: list[tuple[int, bytes]]
) -> None:
    raw = small_llama()
    header_bytes = len(raw.header())
    data = bytearray(raw.build())
    for at, replacement in edits:
        start = at % header_bytes
        data[start : start + len(replacement)] = replacement
    scratch.write_bytes(data)
    _accepted(scratch)


def test_mutate_repeats_with_its_seed() -> None:
    original = small_llama().build()
    first = gguf_builder.mutate(original, random.Random(7))
    assert first == gguf_builder.mutate(original, random.Random(7))
    assert first != original


@pytest.mark.skipif(not GUIDE.exists(), reason="the bundled model is not built")
class TestGuide:
    """The bundled model itself."""

    def test_is_accepted_in_50_ms(self) -> None:
        check(GUIDE)
        started = time.process_time()
        assert check(GUIDE).architecture == "llama"
        assert time.process_time() - started < 0.05

    def test_its_mutants_are_read_or_refused(self, scratch: Path) -> None:
        header_bytes = check(GUIDE).data_offset
        with GUIDE.open("rb") as stream:
            header = stream.read(header_bytes)
        size = GUIDE.stat().st_size
        rng = random.Random(2)
        for _ in range(100):
            scratch.write_bytes(gguf_builder.mutate(header, rng, header_bytes=header_bytes))
            with scratch.open("r+b") as stream:
                stream.truncate(size)
            _accepted(scratch)
