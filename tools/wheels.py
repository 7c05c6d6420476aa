"""Builds wheels with the processor kernels compiled for several kinds of machines: with the Clang
of the package `ziglang`, or on Linux with GCC for this kind of machine.

    python tools/wheels.py [FOLDER] [--only win_amd64]
"""

from __future__ import annotations

import argparse
import os
import platform as host
import re
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
_GLIBC: Final = (2, 28)
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


def compiler_for(platform: str) -> list[str]:
    """The compiler for one of `TARGETS`: GCC on a Linux machine of that kind, because products of 8
    and more rows with AVX-512 are up to 1.2 times as fast as with Clang; else Zig's Clang.
    """
    machine = host.machine()
    is_own = host.libc_ver()[0] == "glibc" and platform.endswith(f"linux_2_28_{machine}")
    if is_own and (gcc := shutil.which("gcc")):
        baseline = ["-march=x86-64"] if machine == "x86_64" else []
        return [gcc, "-s", *baseline]
    return [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform], "-s"]


def newest_glibc(library: bytes) -> tuple[int, int]:
    """The newest version of glibc that a library for Linux asks for; (0, 0) if for none."""
    if b"GLIBC_ABI_DT_RELR" in library:
        return (2, 36)
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library)
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def build_for(platform: str, out: Path) -> Path:
    """The wheel for one of `TARGETS`, in the folder `out`.

    Raises:
        NoCompiler: `ziglang` is missing, or a compiler fails.
        RuntimeError: pip fails, or the library asks for a newer glibc than the platform promises.
    """
    compiler = compiler_for(platform)
    name = build_library.NAMES[build_library.system_of(compiler)]
    environment = {**os.environ, "CC": shlex.join(compiler)}
    with tempfile.TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        option = f"--config-settings=--build-option=--plat-name={platform}"
        wheel = pip_wheel(Path(copy), out, option, environment=environment)
    with zipfile.ZipFile(wheel) as archive:
        if f"hearth/kernels/cpu/built/{name}" not in archive.namelist():
            raise build_library.NoCompiler(f"{wheel} has no {name}: build it with {compiler}")
        library = archive.read(f"hearth/kernels/cpu/built/{name}")
    if "linux" in platform and (asked := newest_glibc(library)) > _GLIBC:
        raise RuntimeError(f"{wheel}: {name} asks for glibc {asked}, the platform has {_GLIBC}.")
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
