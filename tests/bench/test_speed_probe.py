"""The random models that runners are measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.backends.bench import speed_probe
from hearth.backends.bench.speed_probe import measure_runner, write_probe
from hearth.backends.errors import HearthError
from hearth.backends.worker.choice import Runner
from hearth.backends.worker.speeds import kind_of
from hearth.quant.gguf import preflight


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "BF16", "F32"])
def test_a_probe_is_of_the_kind_that_was_asked_for(kind: str, tmp_path: Path) -> None:
    path = write_probe(tmp_path / "probe.gguf", kind)
    assert kind_of(preflight.check(path)) == kind


@pytest.mark.parametrize("kind", ["IQ2_XXS", "Q9_9", "I32"])
def test_a_kind_that_random_weights_cannot_have_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(HearthError):
        write_probe(tmp_path / "probe.gguf", kind)


@pytest.mark.parametrize("runner", ["llamacpp", "native"])
def test_both_runners_are_measured(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_probe, "_PROMPT", 8)
    monkeypatch.setattr(speed_probe, "_STEPS", 2)
    monkeypatch.setattr(speed_probe, "_REPEATS", 1)
    speed = measure_runner(runner, "Q8_0", tmp_path)
    assert speed.prefill > 0 and speed.decode > 0 and speed.request_s > 0
