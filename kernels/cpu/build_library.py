"""Compiles the library in this folder. Imports only the standard library, because the set-up, with
nothing installed yet, and `setup.py` run it too.

    python kernels/cpu/build_library.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = {"win32": "hearth_cpu.dll", "darwin": "libhearth_cpu.dylib", "linux": "libhearth_cpu.so"}
"""File name of the library, by `sys.platform`."""
_MACROS = {"_WIN32": "win32", "__APPLE__": "darwin"}
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")
"""Every operation is rounded as written: none are contracted to fused multiply-adds."""


class NoCompiler(Exception):
    """There is no C compiler, or it failed; the message explains."""


def sources() -> list[Path]:
    """The files to compile, without headers."""
    return sorted(HERE.glob("*.c"))


def version() -> str:
    """Version of the sources and flags: twelve hex digits, which a built library contains."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def library_path(folder: Path = HERE, system: str = sys.platform) -> Path:
    """Path of the built library for a folder like this one: a subfolder, because Python would
    take the library for a module here.
    """
    return folder / "built" / NAMES.get(system, NAMES["linux"])


def is_current(folder: Path = HERE) -> bool:
    """Whether the built library of `folder` is from these sources."""
    path = library_path(folder)
    return path.exists() and version().encode() in path.read_bytes()


def compiler() -> list[str]:
    """The compiler command: `CC`, or the first of cc, gcc and clang. Raises `NoCompiler`."""
    if asked := os.environ.get("CC"):
        return shlex.split(asked)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise NoCompiler("There is no C compiler. Install gcc or clang, or name one with CC.")


def system_of(command: list[str]) -> str:
    """The system that the compiler targets, as in `sys.platform`. Raises `NoCompiler`."""
    defined = _run([*command, "-E", "-dM", "-x", "c", os.devnull]).split()
    return next((system for macro, system in _MACROS.items() if macro in defined), "linux")


def build(folder: Path = HERE, command: list[str] | None = None) -> Path:
    """Build the library of `folder`, several files in parallel, because each takes seconds.

    Args:
        command: the compiler, optionally with a target; default `compiler()`.

    Raises:
        NoCompiler: compiling failed; the message contains the compiler's output.
    """
    command = command or compiler()
    system = system_of(command)
    path = library_path(folder, system)
    path.parent.mkdir(parents=True, exist_ok=True)
    start = [*command, *FLAGS, f'-DHEARTH_VERSION="{version()}"']
    if system != "win32":
        start.append("-fPIC")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, ThreadPoolExecutor() as workers:
        objects = [str(Path(scratch, f"{source.stem}.o")) for source in sources()]
        commands = [
            [*start, "-c", str(source), "-o", made]
            for source, made in zip(sources(), objects, strict=True)
        ]
        list(workers.map(_run, commands))
        made = Path(scratch, path.name)
        _run([*start, "-shared", "-o", str(made), *objects])
        made.replace(path)
    return path


def _run(command: list[str]) -> str:
    """The output of `command`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise NoCompiler(f"{shlex.join(command)}: {error}") from error
    if done.returncode:
        raise NoCompiler(f"{shlex.join(command)}\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    try:
        print(library_path(target) if is_current(target) else build(target))
    except NoCompiler as error:
        sys.exit(str(error))
