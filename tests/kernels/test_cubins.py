"""The Triton kernels can be compiled for every kind of card, without a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "cubins.py"
ARCHITECTURES = {80, 86, 89, 90, 100, 120}


def compiled(*options: str) -> list[dict[str, int | str]]:
    """The output of `tools/cubins.py`, in a process where triton interprets nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(TOOL), "--json", *options],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(600)
def test_a_sample_is_compiled_without_spilled_registers() -> None:
    found = compiled()
    assert {one["arch"] for one in found} == ARCHITECTURES
    names = [str(one["name"]) for one in found]
    assert len(set(names)) == len(names) > 50
    assert all(0 < int(one["registers"]) <= 255 for one in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_every_variant_is_compiled_for_every_card(arch: int) -> None:
    names = [one["name"] for one in compiled("--every", "--arch", str(arch))]
    assert len(set(names)) == len(names) > 480
