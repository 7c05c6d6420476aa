"""Whatever happens while a model is quantized, no broken file is left."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import mutate, tiny_llama
from hearth.quant.errors import CorruptFile, HearthError
from hearth.quant.gguf import preflight
from hearth.quant.gguf.errors import (
    CannotQuantize,
    NoSpace,
    TargetExists,
)
from hearth.quant.gguf.quantize_file import new_file, remove_stale
from hearth.quant.gguf.quantize_run import run
from quantizing import GUIDE, planned, sha256


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose rows are made of long blocks."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return tiny_llama(path, dtype="bf16", hidden=256, layers=2, ffn=256, heads=8, kv_heads=2)


def test_damaged_sources_are_refused(tmp_path: Path, wide: Path) -> None:
    rng = random.Random(6)
    data = wide.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    target = tmp_path / "out.gguf"
    refused = 0
    for _ in range(60):
        damaged.write_bytes(mutate(data, rng))
        try:
            wish = planned(damaged, "Q8_0")
            run(wish, target, replace=True)
        except HearthError:
            refused += 1
            continue
        assert preflight.check(target).size_bytes == wish.size_bytes
    assert refused > 30
    assert not list(tmp_path.glob(".*")), "no temporary is left"


def test_a_weight_that_is_no_number_is_told_by_name(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", dtype="f16")
    header = preflight.check(source)
    bad = next(t for t in header.tensors if t.name == "blk.1.ffn_up.weight")
    data = bytearray(source.read_bytes())
    struct.pack_into("<e", data, header.data_offset + bad.offset + 100, float("nan"))
    source.write_bytes(data)
    with pytest.raises(CannotQuantize, match=r"blk\.1\.ffn_up\.weight"):
        run(planned(source, "Q8_0"), tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


class Enough(Exception):
    pass


def test_cancelling_leaves_nothing(tmp_path: Path, wide: Path) -> None:
    for most in range(0, 20, 3):
        left = iter(range(most))

        def check(left: Any = left) -> None:
            if next(left, None) is None:
                raise Enough

        with pytest.raises(Enough):
            run(planned(wide, "Q8_0"), tmp_path / "out.gguf", check=check)
        assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_replaced_only_when_asked(tmp_path: Path, wide: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(TargetExists):
        run(planned(wide, "Q8_0"), target)
    assert target.read_bytes() == b"mine"
    run(planned(wide, "Q8_0"), target, replace=True)
    assert preflight.check(target).file_type_name == "Q8_0"
    with pytest.raises(CannotQuantize, match="source itself"):
        run(planned(target, "Q6_K", requantize=True), target, replace=True)


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path, wide: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(wide.read_bytes())

    def touch(done: int, total: int, name: str) -> None:
        if done == total:
            data = bytearray(source.read_bytes())
            data[-1] ^= 1
            source.write_bytes(data)

    with pytest.raises(CorruptFile, match="changed while"):
        run(planned(source, "Q8_0"), tmp_path / "out.gguf", on_progress=touch)
    assert not (tmp_path / "out.gguf").exists()


def test_a_full_disk_is_told_before_and_while_writing(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = planned(wide, "Q8_0")
    with pytest.raises(NoSpace) as caught, new_file(tmp_path / "out", 1 << 60):
        raise AssertionError("it was opened")
    assert caught.value.data["needed"] == 1 << 60
    with pytest.raises(NoSpace), new_file(tmp_path / "out", wish.size_bytes):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_only_what_nobody_writes_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".a.gguf.quantizing-00000000.part"
    left.write_bytes(b"left behind")
    (tmp_path / "b.gguf").write_bytes(b"mine")
    with new_file(tmp_path / "c.gguf", 1) as stream:
        stream.write(b"x")
        assert not left.exists(), "the next one cleans up"
        assert remove_stale(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.gguf", "c.gguf"]


def kill_at_random(folder: Path, times: int, seed: int) -> None:
    """Quantize guide in a real process and kill it, `times` times; then once to the end."""
    target = folder / "guide-Q4_K_M.gguf"
    expected = planned(GUIDE, "Q4_K_M")
    question = json.dumps(
        {"method": "gguf", "source": str(GUIDE), "type": "Q4_K_M", "target": str(target)}
        | {"options": {}, "threads": 2, "replace": True}
    )
    rng = random.Random(seed)
    hashes: set[str] = set()
    unfinished = 0
    for number in range(times):
        process = subprocess.Popen(
            [sys.executable, "-m", "hearth.app.library.quantize_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        if number % 4:
            process.stdout.readline()  # the first progress: it writes
        try:
            process.wait(timeout=rng.uniform(0.0, 0.6))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        unfinished += bool(list(folder.glob(".*.part")))
        if target.exists():
            assert target.stat().st_size == expected.size_bytes
            hashes.add(sha256(target))
            target.unlink()
    assert unfinished, "it was never killed while it wrote"
    made = run(expected, target, replace=True)
    assert hashes <= {made.sha256}
    assert not list(folder.glob(".*")), "what was left behind is cleaned up"
    assert sorted(path.name for path in folder.iterdir()) == [target.name, f"{target.name}.json"]


def test_killed_at_any_point_it_leaves_no_broken_file(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_fifty_points_it_leaves_no_broken_file(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 50, seed=2)
