"""What PyTorch can do on this machine, for `hearth doctor`.

A child process finds out, because importing PyTorch takes seconds, and a broken installation may
crash the process.

    python -P -m hearth.backends.native.report
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from hearth.backends.errors import BackendUnavailable

TIMEOUT_S: Final = 120.0
_REINSTALL: Final = "Install it as docs/install.md says."
_Report = TypeVar("_Report")


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device."""

    type: str
    """cpu, cuda or mps."""
    name: str
    free_bytes: int
    multiplies: tuple[str, ...]
    """The dtypes for which it has multiplication instructions."""
    is_best: bool
    """The native runner uses it by default."""


@dataclass(frozen=True, slots=True)
class TorchReport:
    """The installed PyTorch."""

    version: str
    threads: int
    devices: tuple[DeviceReport, ...]
    cpu_kernels: str
    """The instructions that multiply packed matrices on the processor; "" if the library was not
    built or does not work.
    """


@dataclass(frozen=True, slots=True)
class Rows:
    """A range of row counts for which a product is computed in the same way."""

    first: int
    last: int | None
    """None if there is no upper limit."""
    by: str
    activations: str
    """The type in which activations are multiplied."""
    reason: str


@dataclass(frozen=True, slots=True)
class LayoutRoutes:
    """How weights of one stored type are multiplied."""

    layout: str
    device: str
    case: str
    """The condition under which this applies."""
    held: str
    """The type of the weights in memory: `layout`, or a dtype."""
    rows: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """How products with weights of all types are computed, and why."""

    instructions: str
    """Instructions of the kernels for processors; "" if these are not used."""
    reason: str
    """Why these instructions are used."""
    forced: str
    """The value of `HEARTH_CPU_KERNELS`."""
    absent: dict[str, str]
    """Devices that are absent, and why."""
    routes: tuple[LayoutRoutes, ...]


def torch_report() -> TorchReport:
    """Run `make_report` in a child process.

    Raises:
        BackendUnavailable: PyTorch is not installed, or does not load.
    """
    return _answer("hearth.backends.native.report", TorchReport)


def kernel_report() -> KernelReport:
    """Run `routes.make_kernel_report` in a child process; raises as `torch_report`."""
    return _answer("hearth.backends.native.routes", KernelReport)


def _answer(module: str, kind: type[_Report]) -> _Report:
    command = [sys.executable, "-P", "-m", module]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(
            f"PyTorch did not load in {TIMEOUT_S:.0f} s.", _REINSTALL
        ) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise BackendUnavailable(f"PyTorch does not load: {why}", _REINSTALL)
    import msgspec  # Not at module level: the child may run where only PyTorch is installed.

    return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)


def make_report() -> TorchReport:
    """Make the report in this process."""
    import torch

    from hearth.kernels.cpu.library import cpu_library
    from hearth.kernels.device import all_devices, best_device, free_bytes, multiplies

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    reports = [
        DeviceReport(
            type=device.type,
            name=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            free_bytes=free_bytes(device),
            multiplies=tuple(name for name, dtype in dtypes.items() if multiplies(device, dtype)),
            is_best=device == best_device(),
        )
        for device in all_devices()
    ]
    library = cpu_library()
    return TorchReport(
        str(torch.__version__),
        torch.get_num_threads(),
        tuple(reports),
        "" if library is None else library.instructions,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(make_report())))
