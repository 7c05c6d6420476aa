"""The doctor's findings about the native runner, and about which runner is chosen for what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from hearth.app.finding import Finding
from hearth.app.paths import Paths
from hearth.app.settings import Settings
from hearth.backends.choice import MEASURE, this_machine
from hearth.backends.errors import HearthError
from hearth.backends.native.report import DeviceReport, TorchReport, torch_report
from hearth.backends.speeds import Speeds

_NAMES: Final = {"cpu": "processor", "mps": "Apple GPU (MPS)"}


def torch_findings() -> Iterator[Finding]:
    """What PyTorch can do here, asked of a child process; one finding for it all."""
    try:
        report = torch_report()
    except HearthError as error:
        yield Finding("PyTorch", "fault", error.message, error.hint, {"error": error.code})
        return
    yield Finding("PyTorch", "ok", _torch_text(report), data=asdict(report))
    if any(device.type == "mps" for device in report.devices):
        yield Finding(
            "MPS",
            "warning",
            "the native runner on Apple's GPU is not verified on hardware",
            "llama.cpp is the runner that is chosen there; --backend native takes the other.",
        )


def _torch_text(report: TorchReport) -> str:
    devices = "; ".join(_device_text(device) for device in report.devices)
    varlen = "with" if report.has_varlen else "without"
    return (
        f"PyTorch {report.version}, {report.threads} threads, {varlen} attention over block tables "
        f"(for CUDA); {devices}"
    )


def _device_text(device: DeviceReport) -> str:
    name = _NAMES.get(device.type, f"{device.type} {device.name}")
    best = " (taken)" if device.is_best else ""
    return (
        f"{name}{best} multiplies {', '.join(device.multiplies)}, "
        f"{device.free_bytes / 1e9:.1f} GB free"
    )


def choice_findings(paths: Paths, settings: Settings | HearthError) -> Iterator[Finding]:
    """Which runner opens what, and why."""
    asked = "auto" if isinstance(settings, HearthError) else settings.text("backend")
    if asked != "auto":
        text = f"all models are opened by {asked}, as the settings say"
        yield Finding("backend", "ok", text, data={"backend": asked})
        return
    machine = this_machine()
    measured = Speeds(paths.cache).all()
    if machine.has_cuda:
        free = machine.card_free_bytes
        room = "" if free is None else f" and the card has room for ({free / 1e9:.1f} GB free)"
        text = (
            f"safetensors, and GGUFs that it can run{room}: native, on CUDA; "
            "other GGUFs: llama.cpp; hearth show MODEL says why"
        )
    elif machine.is_apple:
        text = "safetensors: native; GGUF: llama.cpp, which is faster on Apple's processors"
    elif measured:
        text = "safetensors: native; GGUF: by what was measured here, else llama.cpp"
    else:
        text = f"safetensors: native; GGUF: llama.cpp, because nothing was measured yet ({MEASURE})"
    data = {
        "backend": "auto",
        "has_cuda": machine.has_cuda,
        "card_free_bytes": machine.card_free_bytes,
        "measured": [asdict(found) for found in measured],
    }
    yield Finding("backend", "ok", text, data=data)
    if machine.has_cuda or machine.is_apple:
        return
    for found in measured:
        runner = "native" if found.is_native_faster else "llama.cpp"
        yield Finding(f"backend {found.kind}", "ok", f"{runner}: {found.words}", data=asdict(found))
