"""Builds wheels with the processor kernels compiled for several kinds of machines, with the Clang
of the package `ziglang`.

    python tools/wheels.py [FOLDER] [--only win_amd64]
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "kernels" / "cpu"))
import build_library  # noqa: E402

TARGETS: Final = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "win_amd64": "x86_64-windows-gnu",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""Zig's targets, by platform of the wheel. Linux: the glibc of Debian 10 and RHEL 8."""
_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_FOLDERS = ("app", "backends", "quant", "kernels", "assets", "docs")


def copy_sources(folder: Path) -> None:
    """Copy the sources of a wheel, without ignored files, since a build leaves files behind. Raises
    `CalledProcessError` outside a git clone.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    listed = subprocess.run(
        [*command, *_FILES, *_FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def pip_wheel(sources: Path, out: Path, *options: str, environment: Mapping[str, str]) -> Path:
    """The wheel of a copy of the sources, built in this environment and without a network.

    Raises:
        RuntimeError: with the output of pip.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--wheel-dir", str(out), *options, str(sources)]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=dict(environment)
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return max(out.glob("hearth_llm-*.whl"), key=lambda path: path.stat().st_mtime_ns)


def build_for(platform: str, out: Path) -> Path:
    """The wheel for one of `TARGETS`, in the folder `out`.

    Raises:
        NoCompiler: `ziglang` is missing, or it fails.
        RuntimeError: pip fails.
    """
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform], "-s"]
    name = build_library.NAMES[build_library.system_of(compiler)]
    environment = {**os.environ, "CC": shlex.join(compiler)}
    with tempfile.TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        option = f"--config-settings=--build-option=--plat-name={platform}"
        wheel = pip_wheel(Path(copy), out, option, environment=environment)
    with zipfile.ZipFile(wheel) as archive:
        if f"hearth/kernels/cpu/built/{name}" not in archive.namelist():
            raise build_library.NoCompiler(f"{wheel} has no {name}: build it with {compiler}")
    return wheel


def main() -> None:
    """Build all wheels, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--only", choices=TARGETS)
    options = parser.parse_args()
    for platform in TARGETS if options.only is None else [options.only]:
        wheel = build_for(platform, options.folder)
        print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
