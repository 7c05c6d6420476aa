"""The wheel contains the packages, the pages of the documentation and the compiled kernels, below
`hearth/` alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hearth.kernels.cpu.build_library import library_path
from source_tree import ROOMS, ROOT, tracked_files

BUILD_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built, without a network, from a copy of the tree (a build leaves files
    behind), with the kernels that are compiled already.
    """
    copy = tmp_path_factory.mktemp("tree")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, copy / name)
    for path in room_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copytree(library_path().parent, copy / "kernels" / "cpu" / "built")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--wheel-dir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("hearth_llm-*.whl"))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def room_files() -> list[Path]:
    pages = (ROOT / "docs").glob("*.md")
    rooms = (path for path in tracked_files() if path.relative_to(ROOT).parts[0] in ROOMS)
    return [*rooms, *pages]


def test_the_wheel_and_the_tree_hold_the_same_files(wheel_names: list[str]) -> None:
    in_wheel = {name for name in wheel_names if ".dist-info/" not in name}
    in_tree = {
        "hearth/" + path.relative_to(ROOT).as_posix() for path in [*room_files(), library_path()]
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
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import torch; from hearth.kernels import packed\n"
        "weight = packed.PackedWeight(torch.zeros(16, 18, dtype=torch.uint8), 'Q4_0')\n"
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
