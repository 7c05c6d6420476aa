"""The wheel contains the packages and the pages of the documentation, below `hearth/` alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from source_tree import ROOMS, ROOT, tracked_files

BUILD_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel that is built, without a network, from a copy of the tree (a build leaves
    files behind).
    """
    copy = tmp_path_factory.mktemp("tree")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, copy / name)
    for path in room_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--wheel-dir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(out.glob("hearth_llm-*.whl"))) as wheel:
        return wheel.namelist()


def room_files() -> list[Path]:
    pages = (ROOT / "docs").glob("*.md")
    rooms = (path for path in tracked_files() if path.relative_to(ROOT).parts[0] in ROOMS)
    return [*rooms, *pages]


def test_the_wheel_and_the_tree_hold_the_same_files(wheel_names: list[str]) -> None:
    in_wheel = {name for name in wheel_names if ".dist-info/" not in name}
    in_tree = {"hearth/" + path.relative_to(ROOT).as_posix() for path in room_files()}
    assert sorted(in_tree - in_wheel) == []
    assert sorted(in_wheel - in_tree) == []


def test_only_hearth_is_at_the_top(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert tops == {"hearth"}
    assert "hearth/__init__.py" not in wheel_names


def test_licence_and_command_travel_with_it(wheel_names: list[str]) -> None:
    endings = ("/licenses/LICENSE", "/entry_points.txt")
    assert all(any(name.endswith(ending) for name in wheel_names) for ending in endings)
