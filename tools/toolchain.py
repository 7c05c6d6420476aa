"""Decides how llama-cpp-python is compiled on this machine (docs/decisions/0004).

GCC 11 to 12.3 and 13.0 to 13.2 declare the operand of `_tile_loadconfig` as 8 bytes, so the
optimiser drops the rest of the tile configuration and llama.cpp's AMX path dies with SIGSEGV on
every quantised file. On a processor with AMX such a compiler is either replaced by clang, or AMX is
disabled with a compiler option.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
OLDEST_CLANG = 15
NEWEST_CLANG = 30
# Variables that affect the result of the build; they are part of a wheel's key.
BUILD_VARIABLES = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "SOURCE_DATE_EPOCH")
_INSTRUCTION_SET = re.compile(
    r"^(sse|ssse|avx|amx|fma|f16c|bmi|vaes|gfni|neon|asimd|sve|sme|i8mm|bf16|fp)"
)

Ask = Callable[["list[str]"], "str | None"]
"""Runs a command and returns its output, or None if it cannot be run or fails."""
Which = Callable[[str], "str | None"]


class NoCompiler(Exception):
    """No working C++ compiler was found; the message says what to install."""


@dataclass(frozen=True)
class Machine:
    """The processor that the library is built for; `cpu_flags` are named as by the kernel."""

    system: str
    arch: str
    cpu_flags: frozenset[str] = frozenset()

    @property
    def is_x86(self) -> bool:
        return self.arch.lower() in {"x86_64", "amd64"}

    @property
    def has_amx(self) -> bool:
        return self.is_x86 and any(flag.startswith("amx_") for flag in self.cpu_flags)


@dataclass(frozen=True)
class Compiler:
    """A C and C++ compiler pair; `family` is "gcc" or "clang"."""

    family: str
    version: tuple[int, ...]
    cc: str
    cxx: str

    @property
    def title(self) -> str:
        name = "GCC" if self.family == "gcc" else "clang"
        return f"{name} {'.'.join(map(str, self.version))}"

    @property
    def drops_tile_config(self) -> bool:
        """Whether this is a GCC release that miscompiles AMX (see the module's docstring)."""
        if self.family != "gcc":
            return False
        return (11,) <= self.version < (12, 4) or (13,) <= self.version < (13, 3)


@dataclass(frozen=True)
class Recipe:
    """One way to build one version of llama-cpp-python; `reason` is a line to show to the user."""

    package_version: str
    compiler: Compiler
    flags: tuple[str, ...]
    reason: str

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` plus compilers and flags; flags that are already set stay in front."""
        env = dict(base)
        env["CC"], env["CXX"] = self.compiler.cc, self.compiler.cxx
        for name in ("CFLAGS", "CXXFLAGS"):
            words = [env.get(name, ""), *self.flags]
            env[name] = " ".join(word for word in words if word)
        return env

    def key(self, machine: Machine, base: Mapping[str, str]) -> str:
        """16 hex digits that name the result; they cover everything that changes machine code."""
        parts = {
            "version": self.package_version,
            "system": machine.system,
            "arch": machine.arch,
            "cpu": sorted(flag for flag in machine.cpu_flags if _INSTRUCTION_SET.match(flag)),
            "compiler": [self.compiler.family, *self.compiler.version],
            "flags": self.flags,
            "environment": {name: base[name] for name in BUILD_VARIABLES if base.get(name)},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def ask(command: list[str]) -> str | None:
    """Output of a command, or None if it is missing, fails or takes over 10 seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_machine() -> Machine:
    """The machine this runs on; without CPU flags if the system has no /proc/cpuinfo."""
    flags: frozenset[str] = frozenset()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
        flags = frozenset(match.group(1).split()) if match else flags
    return Machine(platform.system(), platform.machine(), flags)


def identify(cc: str, cxx: str, ask: Ask = ask) -> Compiler | None:
    """The compiler that `cxx --version` reports; None if it does not run or is neither GCC nor
    clang.
    """
    text = ask([cxx, "--version"]) or ""
    clang = re.search(r"clang version (\d+(?:\.\d+)*)", text)
    gcc = re.search(r"\) (\d+\.\d+\.\d+)", text)
    match = clang or gcc
    if match is None:
        return None
    version = tuple(int(part) for part in match.group(1).split("."))
    return Compiler("clang" if clang else "gcc", version, cc, cxx)


def default_compiler(
    environment: Mapping[str, str], ask: Ask = ask, which: Which = shutil.which
) -> Compiler | None:
    """The compiler that CMake would take: CC and CXX if set, else the system's cc and c++."""
    pairs = [("cc", "c++"), ("gcc", "g++"), ("clang", "clang++")]
    if environment.get("CXX"):
        pairs = [(environment.get("CC") or "cc", environment["CXX"])]
    for cc, cxx in pairs:
        if which(cxx):
            compiler = identify(cc, cxx, ask)
            if compiler:
                return compiler
    return None


def newest_clang(ask: Ask = ask, which: Which = shutil.which) -> Compiler | None:
    """The newest installed clang that compiles AMX code (15 or later), under any versioned name."""
    names = [f"-{number}" for number in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    compilers = []
    for suffix in ["", *names]:
        cc, cxx = f"clang{suffix}", f"clang++{suffix}"
        if which(cc) and which(cxx):
            compiler = identify(cc, cxx, ask)
            if compiler and compiler.family == "clang" and compiler.version[0] >= OLDEST_CLANG:
                compilers.append(compiler)
    return max(compilers, key=lambda compiler: compiler.version, default=None)


def compiles(compiler: Compiler) -> bool:
    """Whether the compiler turns a small C++17 program into an executable, which also needs headers
    and a linker.
    """
    source = '#include <thread>\n#include <string>\nint main() { return std::string("").size(); }\n'
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "try.cpp")
        program.write_text(source)
        command = [
            compiler.cxx,
            "-std=c++17",
            "-pthread",
            str(program),
            "-o",
            str(program.with_suffix("")),
        ]
        return ask(command) is not None


def choose_recipe(
    package_version: str,
    machine: Machine,
    environment: Mapping[str, str],
    ask: Ask = ask,
    which: Which = shutil.which,
    compiles: Callable[[Compiler], bool] = compiles,
) -> Recipe:
    """The fastest build that works here. Raises `NoCompiler`."""
    compiler = default_compiler(environment, ask, which)
    if compiler is None or not compiles(compiler):
        raise NoCompiler(_how_to_get_a_compiler(machine.system))
    if not (machine.has_amx and compiler.drops_tile_config):
        return Recipe(package_version, compiler, (), compiler.title)
    clang = None if environment.get("CXX") else newest_clang(ask, which)
    if clang and compiles(clang):
        return Recipe(
            package_version, clang, (), f"{clang.title}, because {compiler.title} miscompiles AMX"
        )
    reason = (
        f"{compiler.title} with AMX off, because this GCC miscompiles it "
        f"(clang {OLDEST_CLANG} or newer would be faster)"
    )
    return Recipe(package_version, compiler, NO_AMX, reason)


def safe_recipe(recipe: Recipe, machine: Machine) -> Recipe | None:
    """The recipe to build when `recipe` gave a library that fails its self-test.

    None if there is nothing safer: AMX is the only part known to be built wrong.
    """
    if not machine.has_amx or recipe.flags == NO_AMX:
        return None
    compiler = recipe.compiler
    return Recipe(recipe.package_version, compiler, NO_AMX, f"{compiler.title} with AMX off")


def cache_folder(environment: Mapping[str, str], system: str) -> Path:
    """The folder of built wheels, below the cache folder of `hearth.app.paths`."""
    if environment.get("HEARTH_HOME"):
        return Path(environment["HEARTH_HOME"]).expanduser().absolute() / "cache" / "wheels"
    if environment.get("XDG_CACHE_HOME", "").startswith("/"):
        return Path(environment["XDG_CACHE_HOME"], "hearth", "wheels")
    home = Path.home()
    if system == "Darwin":
        return home / "Library" / "Caches" / "hearth" / "wheels"
    return home / ".cache" / "hearth" / "wheels"


def _how_to_get_a_compiler(system: str) -> str:
    if system == "Darwin":
        return "No working C++ compiler. Install Apple's: xcode-select --install"
    return (
        "No working C++ compiler. Install one, for example:\n"
        "  Debian, Ubuntu: sudo apt install build-essential\n"
        "  Fedora:         sudo dnf install gcc-c++ make\n"
        "  Arch:           sudo pacman -S base-devel"
    )
