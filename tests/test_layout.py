"""The shape of the repository: what may be at its top, and that packages and modules have
docstrings.
"""

from __future__ import annotations

import ast

import pytest

from source_tree import PACKAGES, ROOT, modules, tracked_files

CODE_FOLDERS = (*PACKAGES, "tests", "benchmarks", "tools")
TOP_FOLDERS = {*CODE_FOLDERS, "docs", ".ci"}
TOP_FILES = {
    ".gitattributes",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
}


def test_only_known_names_lie_at_the_top() -> None:
    parts = [path.relative_to(ROOT).parts for path in tracked_files()]
    assert {part[0] for part in parts if len(part) > 1} <= TOP_FOLDERS
    assert {part[0] for part in parts if len(part) == 1} <= TOP_FILES


@pytest.mark.parametrize("package", PACKAGES)
def test_each_folder_says_what_lives_there(package: str) -> None:
    folders = {module.path.parent for module in modules(package)}
    silent = []
    for folder in sorted(folders):
        package = folder / "__init__.py"
        if not package.exists() or not ast.get_docstring(
            ast.parse(package.read_text(encoding="utf-8"))
        ):
            silent.append(str(folder.relative_to(ROOT)))
    assert silent == []


def test_every_module_has_a_docstring() -> None:
    silent = [str(module) for module in modules(*CODE_FOLDERS) if not module.has_docstring]
    assert silent == []


def test_tests_are_no_packages() -> None:
    assert [str(module) for module in modules("tests") if module.path.name == "__init__.py"] == []


def test_modules_of_backends_are_in_its_packages() -> None:
    loose = {path.name for path in (ROOT / "backends").glob("*.py")}
    assert loose == {"__init__.py", "errors.py"}


def test_no_room_is_shadowed_by_a_namespace_package() -> None:
    assert not (ROOT / "hearth").exists()
