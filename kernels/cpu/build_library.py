"""Compiles the library of this folder. The standard library alone is imported: the set-up, which
has nothing installed, and `setup.py` run it as well.

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
"""Of the library, by `sys.platform`."""
_MACROS = {"_WIN32": "win32", "__APPLE__": "darwin"}
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")
"""Sums are rounded where the code says so: nothing is contracted."""


class NoCompiler(Exception):
    """There is no C compiler, or it fails; the message says what to do."""


def sources() -> list[Path]:
    """The files that are compiled, without headers."""
    return sorted(HERE.glob("*.c"))


def version() -> str:
    """Of the sources: twelve digits that a built library repeats."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def library_path(folder: Path = HERE, system: str = sys.platform) -> Path:
    """Where the library of a folder like this one is once it is built: apart, since Python would
    take it for a module here.
    """
    return folder / "built" / NAMES.get(system, NAMES["linux"])


def is_current(folder: Path = HERE) -> bool:
    """Whether the library there was built from these sources."""
    path = library_path(folder)
    return path.exists() and version().encode() in path.read_bytes()


def compiler() -> list[str]:
    """The command: `CC`, or the first of cc, gcc and clang. Raises `NoCompiler`."""
    if asked := os.environ.get("CC"):
        return shlex.split(asked)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise NoCompiler("There is no C compiler. Install gcc or clang, or name one with CC.")


def system_of(command: list[str]) -> str:
    """What the compiler compiles for, as `sys.platform` would call it. Raises `NoCompiler`."""
    defined = _run([*command, "-E", "-dM", "-x", "c", os.devnull]).split()
    return next((system for macro, system in _MACROS.items() if macro in defined), "linux")


def build(folder: Path = HERE, command: list[str] | None = None) -> Path:
    """Compile for `folder`, some files at a time: each takes several seconds.

    Args:
        command: the compiler, perhaps with a target; `compiler()` without it.

    Raises:
        NoCompiler: with the compiler's own words.
    """
    command = command or compiler()
    system = system_of(command)
    path = library_path(folder, system)
    path.parent.mkdir(parents=True, exist_ok=True)
    start = [*command, *FLAGS, f'-DHEARTH_VERSION="{version()}"']
    if system != "win32":
        start.append("-fPIC")
    with tempfile.TemporaryDirectory(dir=path.parent) as room, ThreadPoolExecutor() as workers:
        objects = [str(Path(room, f"{source.stem}.o")) for source in sources()]
        commands = [
            [*start, "-c", str(source), "-o", made]
            for source, made in zip(sources(), objects, strict=True)
        ]
        list(workers.map(_run, commands))
        made = Path(room, path.name)
        _run([*start, "-shared", "-o", str(made), *objects])
        made.replace(path)
    return path


def _run(command: list[str]) -> str:
    """What it prints."""
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
