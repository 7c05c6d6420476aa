"""The wheel contains the packages, the pages of the documentation and the compiled kernels, below
`hearth/` alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import wheels
from binaries import binary_exports
from hearth.kernels.cpu import build_library
from hearth.kernels.cpu.build_library import library_path
from source_tree import PACKAGES, ROOT, tracked_files

MACHINES = {
    "manylinux_2_28_x86_64": "ELF x86-64",
    "manylinux_2_28_aarch64": "ELF ARM64",
    "win_amd64": "PE x86-64",
    "macosx_11_0_x86_64": "Mach-O x86-64",
    "macosx_11_0_arm64": "Mach-O ARM64",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built, without a network, from a copy of the tree (a build leaves files
    behind), with the kernels that are compiled already.
    """
    copy = tmp_path_factory.mktemp("tree")
    wheels.copy_sources(copy)
    shutil.copytree(library_path().parent, copy / "kernels" / "cpu" / "built")
    return wheels.pip_wheel(copy, tmp_path_factory.mktemp("wheel"), environment=os.environ)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def packaged_files() -> list[Path]:
    pages = (ROOT / "docs").glob("*.md")
    files = (path for path in tracked_files() if path.relative_to(ROOT).parts[0] in PACKAGES)
    return [*files, *pages]


def test_the_wheel_and_the_tree_hold_the_same_files(wheel_names: list[str]) -> None:
    in_wheel = {name for name in wheel_names if ".dist-info/" not in name}
    in_tree = {
        "hearth/" + path.relative_to(ROOT).as_posix()
        for path in [*packaged_files(), library_path()]
    }
    assert sorted(in_tree - in_wheel) == []
    assert sorted(in_wheel - in_tree) == []


def test_only_hearth_is_at_the_top(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert tops == {"hearth"}
    assert "hearth/__init__.py" not in wheel_names


def test_its_kernels_run_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """And it says for which kind of machine it is."""
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    check_kernels(wheel, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", wheels.TARGETS)
def test_a_wheel_for_another_kind_of_machine(platform: str, tmp_path: Path) -> None:
    """Its library is of the right format and exports what the sources say. That for this kind of
    machine runs, the others are not run anywhere.
    """
    pytest.importorskip("ziglang", reason="no ziglang: pip install -c constraints.txt '.[wheels]'")
    wheel = wheels.build_for(platform, tmp_path)
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if "/kernels/cpu/built/" in one)
        library = archive.read(name)
        wheel_file = next(one for one in archive.namelist() if one.endswith(".dist-info/WHEEL"))
        assert f"Tag: py3-none-{platform}\n" in archive.read(wheel_file).decode()
    sources = "".join(path.read_text(encoding="utf-8") for path in build_library.sources())
    wanted = set(re.findall(r"^EXPORT .*?(\w+)\(", sources, re.MULTILINE))
    system = "darwin" if "mac" in platform else "win32" if "win" in platform else "linux"
    assert name == f"hearth/kernels/cpu/built/{build_library.NAMES[system]}"
    assert len(wanted) > 5 and binary_exports(library) == (MACHINES[platform], wanted)
    assert build_library.version().encode() in library
    if sys.platform == "linux" and platform.endswith(f"linux_2_28_{os.uname().machine}"):
        check_kernels(wheel, tmp_path / "installed")


def check_kernels(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import torch; from hearth.kernels import packed, packed_weight\n"
        "weight = packed_weight.PackedWeight(torch.zeros(16, 18, dtype=torch.uint8), 'Q4_0')\n"
        "matrix = packed.prepare([weight], exact=False)\n"
        "print(packed.__file__, matrix.kind, matrix.matmul(torch.ones(1, 32)).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
    )
    place, *kind, total = done.stdout.split()
    assert place.startswith(str(tmp_path)), done.stderr
    assert kind[0] == "Q4_0," and total == "0.0"


def test_licence_and_command_travel_with_it(wheel_names: list[str]) -> None:
    endings = ("/licenses/LICENSE", "/entry_points.txt")
    assert all(any(name.endswith(ending) for name in wheel_names) for ending in endings)
