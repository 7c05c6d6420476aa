"""The repository for the structure tests: files, modules and their imports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "backends", "quant", "kernels", "assets")
SKIPPED_FOLDERS = {"__pycache__", "build", "dist"}


@dataclass(frozen=True)
class Import:
    """One imported name, absolute: `from a import b` gives "a.b"."""

    name: str
    line: int


@dataclass(frozen=True)
class Module:
    """One Python file; `name` is its import name ("hearth.app.paths"), or its path outside the
    packages.
    """

    path: Path
    name: str

    @property
    def tree(self) -> ast.Module:
        """Parsed at each access: the trees of all modules take hundreds of megabytes."""
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))

    @property
    def has_docstring(self) -> bool:
        return self._outline[0]

    @property
    def imports(self) -> list[Import]:
        """Every import anywhere in the file, including functions and `TYPE_CHECKING` blocks."""
        return self._outline[1]

    @cached_property
    def _outline(self) -> tuple[bool, list[Import]]:
        """Has it a docstring, and its imports."""
        tree = self.tree
        return bool(ast.get_docstring(tree)), list(self.imports_in(tree))

    @property
    def package(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    def imports_in(self, tree: ast.Module) -> Iterator[Import]:
        """The imports in `tree`, if it is that of this module."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


def under(name: str, *packages: str) -> bool:
    """True if `name` is one of `packages` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def tracked_files() -> list[Path]:
    """Every file that belongs to the repository: committed, or new and not ignored; found by a walk
    if git is missing.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        found = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = list(ROOT.rglob("*"))
    return sorted(path for path in found if path.is_file() and not _is_skipped(path))


@cache
def _all_modules() -> list[Module]:
    return [Module(path, _module_name(path)) for path in tracked_files() if path.suffix == ".py"]


def modules(*folders: str) -> list[Module]:
    """The Python files of some top-level folders."""
    return [module for module in _all_modules() if module.package in folders]


def _is_skipped(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts[:-1]
    return any(
        part in SKIPPED_FOLDERS
        or part.endswith(".egg-info")
        or (part.startswith(".") and part != ".ci")
        for part in parts
    )


def _module_name(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(["hearth", *parts]) if parts and parts[0] in PACKAGES else "/".join(parts)
