"""Decides where torch is installed from, so that a machine without an NVIDIA card gets no CUDA
packages.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_S = 3.0
CUDA_NAMES = ("nvidia-", "cuda-")


@dataclass(frozen=True)
class TorchSource:
    """Where torch comes from: `index_url`, or pip's own sources if it is None; `reason` is a line
    to print.
    """

    index_url: str | None
    reason: str
    may_bring_cuda: bool = False
    """Whether pip's choice should be checked first, because no CPU index is named and there is no
    NVIDIA card.
    """

    def pip_arguments(self) -> list[str]:
        """Arguments to install torch alone from PyTorch's index: its dependencies are installed
        with everything else.
        """
        return ["--no-deps", "--index-url", self.index_url] if self.index_url else ["--no-deps"]


def choose_source(
    system: str, environment: Mapping[str, str], *, has_nvidia: bool, cpu_index_answers: bool
) -> TorchSource:
    """The source for this machine; `HEARTH_TORCH_INDEX` overrides everything."""
    asked = environment.get("HEARTH_TORCH_INDEX")
    if asked:
        return TorchSource(asked, f"from {asked} (HEARTH_TORCH_INDEX)")
    if system != "Linux":
        return TorchSource(None, f"the {system} build")
    if has_nvidia:
        return TorchSource(None, "the CUDA build, for the NVIDIA card (several GB)")
    if cpu_index_answers:
        return TorchSource(CPU_INDEX, "the CPU build from PyTorch's index (no NVIDIA card)")
    reason = "from pip's own sources (no NVIDIA card; PyTorch's CPU index does not answer)"
    return TorchSource(None, reason, may_bring_cuda=True)


def has_nvidia_card() -> bool:
    """True if nvidia-smi runs and lists a card."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def cpu_index_answers(url: str = CPU_INDEX, limit_s: float = PROBE_S) -> bool:
    """Whether the index serves its page for torch within `limit_s`. A child process asks, because a
    name lookup has no timeout.
    """
    code = (
        "import sys, urllib.request\n"
        "urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2])).read(1)"
    )
    command = [sys.executable, "-c", code, f"{url}/torch/", str(limit_s)]
    try:
        return subprocess.run(command, capture_output=True, timeout=limit_s + 0.5).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def describe_candidate(report: Mapping[str, Any]) -> str:
    """What pip would install, from the report of its dry run; a CUDA build is named as such."""
    entries: Sequence[Mapping[str, Any]] = report.get("install", [])
    if not entries:
        return "installed already"
    metadata = entries[0]["metadata"]
    needs: list[str] = metadata.get("requires_dist", [])
    cuda = [need for need in needs if need.startswith(CUDA_NAMES) and "extra ==" not in need]
    if not cuda:
        return f"torch {metadata['version']}, a build without CUDA packages"
    return (
        f"torch {metadata['version']} with {len(cuda)} CUDA packages and no CPU build of it: "
        "several GB will be downloaded. To avoid that, stop now and name an index that has one "
        "in HEARTH_TORCH_INDEX"
    )


def parse_report(text: str) -> dict[str, Any]:
    """The JSON that `pip install --dry-run --report -` printed; empty if it printed none."""
    try:
        report = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return report if isinstance(report, dict) else {}
