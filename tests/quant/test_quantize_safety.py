"""Quantizing can be resumed after any interruption, and never leaves a broken file."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_builder import mutate, tiny_llama
from hearth.quant.errors import CorruptFile, HearthError
from hearth.quant.gguf import imatrix, preflight, quantize_file
from hearth.quant.gguf.errors import (
    BeingWritten,
    CannotQuantize,
    NoSpace,
    TargetExists,
)
from hearth.quant.gguf.quantize_file import (
    discard,
    manifest_path,
    open_partial,
    unfinished_in,
)
from hearth.quant.gguf.quantize_run import run
from quantizing import GUIDE, Stopped, importances, planned, save_imatrix, sha256, stop_after


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose rows consist of long blocks."""
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


def test_stopped_at_every_tensor_the_result_is_the_same(tmp_path: Path, wide: Path) -> None:
    whole = run(planned(wide, "Q4_K_M"), tmp_path / "whole.gguf")
    target = tmp_path / "out.gguf"
    parts = []
    for count in range(1, 200):
        try:
            made = run(planned(wide, "Q4_K_M"), target, check=stop_after(count))
            break
        except Stopped:
            assert not target.exists()
            parts.append(unfinished_in(tmp_path)[0].done_bytes)
    assert len(set(parts)) > 5 and parts == sorted(parts), "nothing is written twice"
    assert made.path.read_bytes() == whole.path.read_bytes()
    assert made.sha256 == whole.sha256 == sha256(target)
    assert not list(tmp_path.glob(".*"))


def begun(source: Path, target: Path) -> Path:
    """Write half of `target`; returns the partial file."""
    with pytest.raises(Stopped):
        run(planned(source, "Q8_0"), target, check=stop_after(12))
    (partial,) = target.parent.glob(".*.part")
    return partial


@pytest.mark.parametrize("at", [0.02, 0.5, 0.99])
def test_what_is_damaged_in_a_partial_file_is_written_again(
    tmp_path: Path, wide: Path, at: float
) -> None:
    whole = run(planned(wide, "Q8_0"), tmp_path / "whole.gguf")
    target = tmp_path / "out.gguf"
    partial = begun(wide, target)
    data = bytearray(partial.read_bytes())
    data[int(at * unfinished_in(tmp_path)[0].done_bytes)] ^= 1
    partial.write_bytes(data)
    notes: list[str] = []
    assert run(planned(wide, "Q8_0"), target, on_note=notes.append).sha256 == whole.sha256
    assert "damaged" in notes[0]
    partial = begun(wide, target.with_name("cut.gguf"))
    partial.write_bytes(partial.read_bytes()[: int(at * 5000)])
    assert run(planned(wide, "Q8_0"), tmp_path / "cut.gguf").sha256 == whole.sha256


def test_another_source_or_another_type_starts_over(tmp_path: Path, wide: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "out.gguf"
    source.write_bytes(wide.read_bytes())
    notes: list[str] = []
    begun(source, target)
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    with pytest.raises(Stopped):
        run(planned(source, "Q8_0"), target, on_note=notes.append, check=stop_after(12))
    assert "the source changed" in notes[0]
    made = run(planned(source, "Q6_K"), target, on_note=notes.append)
    assert "the options or version changed" in notes[1]
    assert made.sha256 == run(planned(source, "Q6_K"), tmp_path / "other.gguf").sha256


def test_what_is_unfinished_says_how_to_go_on(tmp_path: Path, wide: Path) -> None:
    target = tmp_path / "out.gguf"
    with pytest.raises(Stopped):
        run(planned(wide, "Q4_K_M", "attn_v=F16"), target, check=stop_after(12))
    (found,) = unfinished_in(tmp_path)
    assert found.target == target and not found.is_running
    assert found.done_bytes > 0 and 0 < found.share < 1
    assert found.request["source"] == str(wide) and found.request["type"] == "Q4_K_M"
    assert found.request["options"]["tensor"] == ["attn_v=F16"]
    discard(target)
    assert unfinished_in(tmp_path) == [] and list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("changed", ["source.gguf", "im.gguf"])
def test_input_that_changes_meanwhile_is_noticed(changed: str, tmp_path: Path, wide: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(wide.read_bytes())
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", importances(wide)))

    def touch(done: int, total: int, name: str) -> None:
        if done == total:
            data = bytearray((tmp_path / changed).read_bytes())
            data[-1] ^= 1
            (tmp_path / changed).write_bytes(data)

    with pytest.raises(CorruptFile, match=f"{changed} changed while"):
        run(planned(source, "Q4_K_M", matrix=matrix), tmp_path / "out.gguf", on_progress=touch)
    assert not (tmp_path / "out.gguf").exists()


def none() -> None:
    """A `check` that does not interrupt."""


def test_a_full_disk_keeps_what_is_written(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = {"request": {}, "made_of": {}, "size_bytes": 1 << 60}
    with pytest.raises(NoSpace) as caught, open_partial(tmp_path / "large", begin, none):
        raise AssertionError("it was opened")
    assert caught.value.data["needed"] == 1 << 60
    target = tmp_path / "out.gguf"
    partial = begun(wide, target)
    size = partial.stat().st_size
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("hearth.quant.gguf.quantize_file.Partial.end_part", raising(full))
        with pytest.raises(NoSpace):
            run(planned(wide, "Q8_0"), target)
    assert partial.stat().st_size >= size
    assert run(planned(wide, "Q8_0"), target).path == target


def raising(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def windows_locks(fd: int, mode: int, count: int) -> None:
    """Locks the byte at the position of `fd`, as `msvcrt.locking` does with LK_NBLCK."""
    import fcntl

    assert mode == 2 and count == 1
    position = os.lseek(fd, 0, os.SEEK_CUR)
    assert position > os.fstat(fd).st_size, "what is locked cannot be read by other processes"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_two_processes_do_not_write_one_file(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    msvcrt = SimpleNamespace(LK_NBLCK=2, locking=windows_locks)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setattr(quantize_file, "sys", SimpleNamespace(platform=platform))
    target = tmp_path / "out.gguf"
    begin = {"request": {}, "made_of": {}, "size_bytes": 1}
    with open_partial(target, begin, none):
        assert unfinished_in(tmp_path)[0].is_running
        with pytest.raises(BeingWritten):
            run(planned(wide, "Q8_0"), target)
    run(planned(wide, "Q8_0"), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "out.gguf.json"]


def test_a_folder_that_is_being_finished_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its files already have their names, but the folder does not."""
    target, names = tmp_path / "made", ["1.safetensors", "2.safetensors"]
    begin = {"request": {}, "made_of": {"source": 1}, "size_bytes": 2}
    begin |= {"files": [[name, 1] for name in names]}
    looks = 0

    def meddle(folder: Path) -> None:
        nonlocal looks
        looks += 1
        with pytest.raises(BeingWritten), open_partial(target, begin, none):
            raise AssertionError("it was opened")
        with pytest.raises(BeingWritten):
            discard(target)

    monkeypatch.setattr("hearth.quant.gguf.quantize_file.sync_folder", meddle)
    monkeypatch.setattr("hearth.quant.gguf.quantize_file._LOCK_S", 0.0)
    with open_partial(target, begin, none) as partial:
        partial.write(b"ab")
        partial.end_part("all")
        partial.finish_folder(names, {"config.json": b"{}"})
    assert looks and {path.name: path.read_bytes() for path in target.iterdir()} == {
        "1.safetensors": b"a",
        "2.safetensors": b"b",
        "config.json": b"{}",
    }
    assert list(tmp_path.iterdir()) == [target]


def kill_at_random(folder: Path, times: int, seed: int) -> None:
    """Quantize guide in real processes that are killed, `times` times, each resuming the previous
    one or starting again if that was complete; then once to the end.
    """
    target = folder / "guide-Q4_K_M.gguf"
    expected = run(planned(GUIDE, "Q4_K_M"), folder / "whole.gguf").sha256
    question = json.dumps(
        {"method": "gguf", "source": str(GUIDE), "type": "Q4_K_M", "target": str(target)}
        | {"options": {}, "threads": 2, "replace": True}
    )
    job = ("hearth.app.jobs.child", "hearth.app.library.quantize_job", "quantize")
    rng = random.Random(seed)
    unfinished, resumed = 0, 0
    for number in range(times):
        process = subprocess.Popen(
            [sys.executable, "-m", *job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        before = [one.done_bytes for one in unfinished_in(folder)]
        if number % 4:
            first = json.loads(process.stdout.readline())  # It is writing now.
            resumed += "Resuming" in first.get("progress", {}).get("note", "")
        try:
            process.wait(timeout=rng.uniform(0.0, 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if target.exists():
            assert sha256(target) == expected
            target.unlink()
        else:
            unfinished += 1
            after = [one.done_bytes for one in unfinished_in(folder)]
            assert after >= before, "a kill loses at most the tensor in progress"
    assert unfinished, "it was never killed while it wrote"
    assert resumed or times < 10
    assert run(planned(GUIDE, "Q4_K_M"), target, replace=True).sha256 == expected
    assert not list(folder.glob(".*"))


def test_killed_at_any_point_it_goes_on(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_fifty_points_it_goes_on(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 50, seed=2)


def test_what_a_kill_left_of_the_manifest_is_written_over(tmp_path: Path) -> None:
    target = tmp_path / "guide-Q4_K_M.gguf"
    (tmp_path / f".{target.name}.json.tmp").write_text('{"form')
    run(planned(GUIDE, "Q4_K_M"), target)
    assert not list(tmp_path.glob(".*"))
    assert json.loads(manifest_path(target).read_text())["format"] == 1
