"""`hearth doctor`: what it finds, and that every fault has a cure and exit code 1."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.app import doctor, speeds
from hearth.app.cli import installation
from hearth.app.library import local
from hearth.backends.errors import BackendUnavailable
from hearth.backends.llamacpp import selftest
from hearth.backends.native.report import (
    DeviceReport,
    KernelReport,
    LayoutRoutes,
    Rows,
    TorchReport,
    kernel_report,
    torch_report,
)
from hearth.backends.worker.choice import Machine
from hearth.backends.worker.speeds import Measured, Speed, Speeds

GOOD = selftest.Verdict(True, "", "CPU : AVX2 = 1 | REPACK = 1", "0" * 16)
PROCESSOR = DeviceReport("cpu", "cpu", 8 * 10**9, ("f32", "bf16"), is_best=True)
TORCH = TorchReport("2.11.0", 4, (PROCESSOR,), cpu_kernels="avx2")
CRASHES = selftest.Verdict(False, "it died of SIGSEGV", "CPU : AMX_INT8 = 1", "0" * 16)


@pytest.fixture
def healthy(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is wrong; the self-test itself has tests of its own."""
    bundled = home / "bundled"
    bundled.mkdir()
    for name in local.BUNDLED:
        shutil.copy(tiny_model, bundled / f"{name}.f16.gguf")
    monkeypatch.setattr(local, "bundled_folder", lambda: bundled)
    monkeypatch.setattr(selftest, "verdict", lambda cache_dir: GOOD)
    monkeypatch.setattr(doctor, "torch_report", lambda: TORCH)
    return home


Hearth = Callable[..., Any]


def findings(result: Any) -> dict[str, dict[str, Any]]:
    return {finding["subject"]: finding for finding in result.json["findings"]}


def test_a_healthy_machine(hearth: Hearth, healthy: Path) -> None:
    result = hearth("doctor")
    assert (result.code, result.err) == (0, "")
    assert not [line for line in result.out.splitlines() if line.startswith("x")]
    for path in ("config", "data/models", "state", "cache", "log"):
        assert str(healthy / path) in result.out
    assert "downloads folder" in result.out
    assert "passed its self-test; CPU : AVX2 = 1" in result.out


def test_the_report_for_programs(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_TOP_K", "3")
    monkeypatch.setenv("HEARTH_NO_SUCH_THING", "3")
    monkeypatch.setenv("HEARTH_CPU_KERNELS", "plain")
    result = hearth("--offline", "doctor", "--json")
    found = findings(result)
    assert result.json["healthy"] is True
    assert found["settings"]["data"]["values"]["top_k"] == {"value": 3, "origin": "HEARTH_TOP_K"}
    assert found["offline"]["data"] == {"offline": True}
    assert found["host"]["data"]["running"] is True
    assert found["llama.cpp"]["data"] == dataclasses.asdict(GOOD)
    assert found["models"]["data"]["usable"] == ["guide", "tiny"]
    assert found["environment"]["state"] == "warning"
    assert found["environment"]["text"] == "nothing reads HEARTH_NO_SUCH_THING"
    assert found["packages"]["data"]["versions"]["numpy"]


def test_without_a_host_nothing_is_wrong(hearth: Hearth, healthy: Path) -> None:
    found = findings(hearth("doctor", "--json", unreachable="none"))
    assert found["host"] == {
        "subject": "host",
        "state": "ok",
        "text": "no host process is running; commands start one",
        "cure": "",
        "data": {"running": False},
    }


def test_a_library_that_crashes_is_a_fault_with_its_cause_and_cure(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "verdict", lambda cache_dir: CRASHES)
    result = hearth("doctor")
    assert result.code == 1
    assert "GCC before 12.4 / 13.3" in result.out and "it died of SIGSEGV" in result.out
    for line in selftest.cure().splitlines():
        assert line.strip() in result.out
    assert "Broken: llama.cpp." in result.err


def test_a_self_test_that_could_not_be_completed_is_a_warning(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = dataclasses.replace(CRASHES, reason="no answer within 60 s", is_final=False)
    monkeypatch.setattr(selftest, "verdict", lambda cache_dir: unfinished)
    found = findings(hearth("doctor", "--json"))["llama.cpp"]
    assert found["state"] == "warning" and "no answer within 60 s" in found["text"]
    assert "CFLAGS" not in found["cure"] and "again" in found["cure"]


def test_a_missing_library_is_a_fault(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(cache_dir: Path) -> None:
        raise BackendUnavailable("The llama.cpp backend is not installed.", "Install it.")

    monkeypatch.setattr(selftest, "verdict", missing)
    result = hearth("doctor", "--json")
    assert result.code == 1
    assert findings(result)["llama.cpp"]["cure"] == "Install it."


def test_a_home_that_cannot_be_written_is_a_fault_and_the_rest_is_still_examined(
    hearth: Hearth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEARTH_HOME", str(tmp_path / "file"))
    result = hearth("doctor", "--json")
    assert result.code == 1
    found = findings(result)
    assert found["llama.cpp"]["state"] == "ok"  # It passes, which is only not stored.
    for subject in ("cache folder", "state folder"):
        assert found[subject]["state"] == "fault" and "HEARTH_HOME" in found[subject]["cure"]
    assert "host" in found


def test_broken_settings_are_a_fault_and_the_rest_is_still_examined(
    hearth: Hearth, healthy: Path
) -> None:
    (healthy / "config").mkdir()
    (healthy / "config" / "settings.toml").write_text("modle = 1")
    result = hearth("doctor", "--json")
    assert result.code == 1
    assert "Did you mean model?" in findings(result)["settings"]["text"]
    assert "host" in findings(result)


def test_a_missing_bundled_model_is_a_fault(hearth: Hearth, healthy: Path) -> None:
    (healthy / "bundled" / "guide.f16.gguf").unlink()
    result = hearth("doctor")
    assert result.code == 1
    assert "the bundled guide cannot be found" in result.out


def test_a_bad_model_of_the_user_is_a_warning(hearth: Hearth, healthy: Path) -> None:
    (healthy / "data" / "models" / "bad.gguf").write_bytes(b"GGUF")
    result = hearth("doctor")
    assert result.code == 0
    assert "! model" in result.out and "bad" in result.out


def test_a_bad_file_of_another_program_is_not_ours_to_remove(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = healthy / "user" / ".lmstudio" / "models" / "maker" / "model" / "theirs.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"GGUF")
    (healthy / "data" / "models" / "bad.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("HOME", str(healthy / "user"))
    monkeypatch.setenv("USERPROFILE", str(healthy / "user"))
    report = hearth("doctor", "--json").json["findings"]
    cures = {f["data"]["origin"]: f["cure"] for f in report if f["subject"] == "model"}
    assert (
        cures["lmstudio"].startswith("It belongs to LM Studio") and str(theirs) in cures["lmstudio"]
    )
    assert "emove" not in cures["lmstudio"]
    assert cures["library"].startswith("Replace or remove")


@pytest.mark.parametrize(
    ("keys", "state", "said"),
    [
        ('"app.help" = "f3"', "warning", "f3 is the key of app.help and of app.library"),
        ('"app.hlep" = "f3"', "fault", "Did you mean app.help"),
    ],
)
def test_keys_that_clash_or_do_not_exist_are_told(
    hearth: Hearth, healthy: Path, keys: str, state: str, said: str
) -> None:
    (healthy / "config").mkdir()
    (healthy / "config" / "settings.toml").write_text(f"[keys]\n{keys}\n")
    found = findings(hearth("doctor", "--json"))["keys"]
    assert found["state"] == state and said in found["text"] and found["cure"]


def test_what_pytorch_can_do_is_told(hearth: Hearth, healthy: Path) -> None:
    found = findings(hearth("doctor", "--json"))["PyTorch"]
    assert found["state"] == "ok"
    for said in ("2.11.0", "4 threads", "processor (taken) multiplies f32, bf16", "8.0 GB free"):
        assert said in found["text"]


@pytest.mark.parametrize(("kernels", "state"), [("avx2", "ok"), ("", "warning")])
def test_the_kernels_of_processors_are_told(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, state: str
) -> None:
    report = dataclasses.replace(TORCH, cpu_kernels=kernels)
    monkeypatch.setattr(doctor, "torch_report", lambda: report)
    found = findings(hearth("doctor", "--json"))["CPU kernels"]
    assert found["state"] == state and (kernels or "C compiler") in found["text"] + found["cure"]


def test_what_multiplies_is_shown_for_each_type(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (Rows(1, 23, "AVX2", "int8", "few"), Rows(24, None, "AMX", "bf16", "many"))
    routes = tuple(LayoutRoutes(kind, "cpu", "by default", kind, rows) for kind in ("Q4_0", "Q4_K"))
    report = KernelReport("amx", "the best", "", {"cuda": "no card is found"}, routes)
    monkeypatch.setattr(installation, "kernel_report", lambda: report)
    shown = hearth("doctor", "--kernels")
    assert shown.code == 0 and "HEARTH_CPU_KERNELS=" in shown.err
    for line in ("cuda: no card is found", "Q4_0, Q4_K on cpu by default"):
        assert line in shown.out.splitlines()
    assert shown.out.splitlines()[-1].split() == "24 and more AMX bf16 many".split()
    assert hearth("doctor", "--kernels", "--json").json["routes"][1]["rows"][1]["last"] is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("mps", "not verified on hardware"),
        ("cuda", "run on H100s"),
    ],
)
def test_gpus_are_marked_as_not_verified(
    kind: str, said: str, hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = DeviceReport(kind, "name", 10**9, ("f32", "f16"), is_best=True)
    report = dataclasses.replace(TORCH, devices=(PROCESSOR, gpu))
    monkeypatch.setattr(doctor, "torch_report", lambda: report)
    found = findings(hearth("doctor", "--json"))[kind.upper()]
    assert found["state"] == "warning" and said in found["text"] and found["cure"]


def test_a_pytorch_that_does_not_load_is_a_fault(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> TorchReport:
        raise BackendUnavailable("PyTorch does not load: no libc", "Install it again.")

    monkeypatch.setattr(doctor, "torch_report", broken)
    result = hearth("doctor")
    assert result.code == 1 and "no libc" in result.out and "Install it again." in result.out


def test_the_installed_pytorch_is_asked_in_a_child() -> None:
    report, kernels = torch_report(), kernel_report()
    assert report.cpu_kernels == kernels.instructions and kernels.routes[0].rows[-1].last is None
    assert report.version and report.threads > 0
    assert "f32" in report.devices[0].multiplies and sum(one.is_best for one in report.devices) == 1


def test_what_was_measured_and_chosen_is_shown_with_its_numbers(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: Machine(False, False, True, True))
    found = findings(hearth("doctor", "--json"))["backend"]
    assert "hearth doctor --measure" in found["text"]
    (healthy / "cache").mkdir(exist_ok=True)
    Speeds(healthy / "cache").put(Measured("Q4_K", Speed(100, 10), Speed(300, 30), "2026-11-21"))
    Speeds(healthy / "cache").put(Measured("Q8_0", Speed(100, 10), Speed(90, 9), "2026-11-21"))
    shown = findings(hearth("doctor", "--json"))
    assert shown["backend Q4_K"]["text"].startswith("native: native 300 prefill and 30.0 decode")
    assert shown["backend Q8_0"]["text"].startswith("llama.cpp: ")
    monkeypatch.setenv("HEARTH_BACKEND", "native")
    assert "opened by native" in findings(hearth("doctor", "--json"))["backend"]["text"]


def test_the_room_of_a_card_is_told(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Machine(False, True, True, True, card_free_bytes=61 * 10**9)
    monkeypatch.setattr(doctor, "this_machine", lambda: card)
    found = findings(hearth("doctor", "--json"))["backend"]
    assert "61.0 GB free" in found["text"] and "hearth show MODEL" in found["text"]
    assert found["data"]["card_free_bytes"] == 61 * 10**9


def test_both_backends_are_measured_for_the_kinds_that_are_here(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(module: str, question: dict[str, str], *_: object) -> dict[str, float]:
        asked.append((question["runner"], question["kind"]))
        return {"prefill": 100.0, "decode": 10.0 if question["runner"] == "native" else 5.0}

    monkeypatch.setattr(speeds, "run_job", measured)
    result = hearth("doctor", "--measure", "--json")
    assert asked == [("llamacpp", "F32"), ("native", "F32")]
    assert "measuring F32 with native" in result.err
    (found,) = Speeds(healthy / "cache").all()
    assert (found.kind, found.is_native_faster) == ("F32", True)


def test_a_kind_that_cannot_be_measured_is_said(
    hearth: Hearth, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, float]:
        raise BackendUnavailable("no such kernel")

    monkeypatch.setattr(speeds, "run_job", fails)
    result = hearth("doctor", "--measure")
    assert result.code == 0 and "F32 cannot be measured: no such kernel" in result.err
