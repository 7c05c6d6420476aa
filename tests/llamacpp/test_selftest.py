"""A llama.cpp that crashes on quantized files is detected in a child process, once, and worked
around.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import llama_shim
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.llamacpp import selftest
from hearth.backends.llamacpp.load import open_model
from hearth.backends.llamacpp.selftest import Outcome, Verdict, cure, explain, verdict


def in_a_process(code: str, shim: Path, *arguments: str) -> dict[str, object]:
    """Run `code`, which sets `said`, where `import llama_cpp` finds the shim; returns `said`."""
    script = (
        "import json, sys\nfrom pathlib import Path\n"
        "from hearth.backends.errors import HearthError\n"
        f"try:\n    {code}\n"
        "except HearthError as error:\n"
        "    said = {'error': error.code, 'message': error.message, 'hint': error.hint}\n"
        "print(json.dumps(said))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(shim)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


VERDICT = (
    "from hearth.backends.llamacpp import selftest; found = selftest.verdict(Path(sys.argv[1])); "
    "said = {'safe': found.extra_buffers_safe, 'reason': found.reason,"
    " 'notice': selftest.explain(found)}"
)
OPEN = (
    "from hearth.backends.llamacpp.load import open_model; "
    "from hearth.backends.contract.models import ModelSpec; "
    "from hearth.backends.engine.runner import Row, StepPlan; "
    "loaded = open_model(ModelSpec(sys.argv[1]), Path(sys.argv[2])); "
    "logits = loaded.runner.step(StepPlan((Row(0, 0, [1, 2, 3], 1, handle=0),))).logits; "
    "said = {'notices': loaded.info.notices, 'rows': len(logits)}"
)


def test_this_machine_can_run_quantized_models(tmp_path: Path) -> None:
    found = verdict(tmp_path)
    assert found.extra_buffers_safe == (found.reason == "")
    assert found.system_info.startswith("CPU")
    assert (explain(found) is None) == found.extra_buffers_safe


def test_a_verdict_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []

    def fake_try(*, extra_buffers: bool, folder: Path) -> Outcome:
        tries.append(extra_buffers)
        return Outcome("it died of SIGSEGV" if extra_buffers else "", "AMX_INT8 = 1")

    monkeypatch.setattr(selftest, "_try", fake_try)
    first = verdict(tmp_path)
    assert verdict(tmp_path) == first
    assert tries == [True, False]
    assert not first.extra_buffers_safe
    (stored,) = tmp_path.iterdir()
    stored.write_text("{")
    assert verdict(tmp_path) == first
    assert tries == [True, False] * 2


def test_another_library_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_try", lambda **_: Outcome("", "CPU"))
    verdict(tmp_path)
    monkeypatch.setattr(selftest, "cpu_name", lambda: "another CPU")
    verdict(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "unlucky", [(True,), (False,), (True, False)], ids=["repacked", "plain", "both"]
)
def test_an_accident_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlucky: tuple[bool, ...]
) -> None:
    """Lack of time or memory: the slow mode for now, and another test next time."""

    def fake_try(*, extra_buffers: bool, folder: Path) -> Outcome:
        if extra_buffers in unlucky:
            return Outcome("it died of SIGKILL", "AMX_INT8 = 1", is_proof=False)
        return Outcome("it died of SIGSEGV" if extra_buffers else "", "AMX_INT8 = 1")

    monkeypatch.setattr(selftest, "_try", fake_try)
    found = verdict(tmp_path)
    assert not found.extra_buffers_safe
    assert "not completed" in str(explain(found))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(selftest, "_try", lambda **_: Outcome("", "CPU"))
    assert verdict(tmp_path).extra_buffers_safe


def test_a_verdict_that_cannot_be_stored_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(selftest, "_try", lambda **_: Outcome("", "CPU"))
    assert verdict(tmp_path / "file").extra_buffers_safe
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    found = verdict(tmp_path / "file")
    assert not found.extra_buffers_safe and "missing" in found.reason


def test_a_crash_is_contained_and_the_slow_mode_chosen(tmp_path: Path) -> None:
    shim = llama_shim.crashing(tmp_path / "shim")
    said = in_a_process(VERDICT, shim, str(tmp_path / "cache"))
    assert said["safe"] is False
    assert said["reason"] == "it died of SIGSEGV"
    assert "slower" in str(said["notice"]) and "hearth doctor" in str(said["notice"])


def test_wrong_results_are_as_bad_as_a_crash(tmp_path: Path) -> None:
    shim = llama_shim.crashing(tmp_path / "shim", how=llama_shim.WRONG)
    said = in_a_process(VERDICT, shim, str(tmp_path / "cache"))
    assert said["safe"] is False
    assert "NMSE" in str(said["reason"])


def test_a_quantized_model_runs_on_a_crashing_build_and_says_so(
    tmp_path: Path, q8_model: Path
) -> None:
    shim = llama_shim.crashing(tmp_path / "shim")
    said = in_a_process(OPEN, shim, str(q8_model), str(tmp_path / "cache"))
    assert said["rows"] == 1
    assert any("slower" in notice for notice in said["notices"])  # type: ignore[attr-defined]


def test_a_float_model_needs_no_self_test(tmp_path: Path, f32_model: Path) -> None:
    cache = tmp_path / "cache"
    loaded = open_model(ModelSpec(str(f32_model), settings=ModelSettings(context=64)), cache)
    loaded.runner.close()
    assert not cache.exists()


def test_a_build_that_always_crashes_is_unavailable(tmp_path: Path) -> None:
    shim = llama_shim.crashing(tmp_path / "shim", always=True)
    said = in_a_process(VERDICT, shim, str(tmp_path / "cache"))
    assert said["error"] == "backend_unavailable"
    assert "SIGSEGV" in str(said["message"]) and "pip install" in str(said["hint"])


def test_a_library_that_does_not_load_is_unavailable(tmp_path: Path, f32_model: Path) -> None:
    shim = llama_shim.unloadable(tmp_path / "shim")
    said = in_a_process(OPEN, shim, str(f32_model), str(tmp_path / "cache"))
    assert said["error"] == "backend_unavailable"
    assert "undefined symbol" in str(said["message"]) and "doctor" in str(said["hint"])


def test_verify_tells_setup_by_its_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hearth.backends.llamacpp.selftest", "--verify"]
    shim = llama_shim.unloadable(tmp_path / "shim")
    broken = {**os.environ, "PYTHONPATH": str(shim)}
    done = subprocess.run(command, env=broken, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "undefined symbol" in done.stdout


def test_the_cure_builds_without_amx_and_without_pips_cache() -> None:
    for part in ("-mno-amx-tile", "CXXFLAGS", "--no-cache-dir", "--force-reinstall", "0.3.36"):
        assert part in cure()
        assert part in cure("CPU : AMX_INT8 = 1 | REPACK = 1 | ")
    assert "-DGGML_NATIVE=off" in cure("CPU : AVX2 = 1 | REPACK = 1 | ")


def test_the_notice_names_amx_where_amx_is_used() -> None:
    notice = explain(Verdict(False, "it died of SIGSEGV", "CPU : AMX_INT8 = 1 |", "0"))
    assert notice is not None and "AMX" in notice
