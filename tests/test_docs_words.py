"""No word of `banned_words.txt` in the documentation or in what the program writes: its words would
have to be learned first. Changelog, decisions and results are left as they were written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_tree import ROOT, modules

WORDS = (ROOT / "tests" / "banned_words.txt").read_text(encoding="utf-8").split("\n")
BANNED = re.compile(
    r"(?<![\w-])(?:"
    + "|".join(word.replace(" ", r"\s+") for word in WORDS if word)
    + r")(?![\w-])",
    re.IGNORECASE,
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that is not a docstring, by line; those of commands are shown by `--help`."""
    hidden = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(decorator_list=marks) if "click." in " ".join(
                map(ast.unparse, marks)
            ):
                continue
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                hidden |= {statement.value for statement in node.body if _is_text(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in hidden:
            yield node.lineno, node.value


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def test_the_documentation_has_no_banned_words() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {match[0]}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1)
        for match in BANNED.finditer(line)
    ]
    assert found == []


def test_what_the_program_writes_has_no_banned_words() -> None:
    found = [
        f"{module}:{line}: {match[0]}"
        for module in modules("app", "backends", "quant", "kernels", "tools")
        for line, text in strings(module.tree)
        for match in BANNED.finditer(text)
    ]
    assert found == []
