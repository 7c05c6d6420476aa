"""What errors tell people to do can be done in the terminal app too, which has no flags: where a
hint names the flag of a setting, it names the setting.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hearth.app.cli.options import flag_of
from hearth.app.settings_keys import LOADING, SAMPLING
from source_tree import Module, modules, under

FLAGS = {flag_of(key): key.name for key in (*LOADING, *SAMPLING)}


def texts(module: Module) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines, but for docstrings; of an f-string what is fixed."""
    passed: set[int] = set()
    for node in ast.walk(module.tree):  # what holds a node comes before it
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            passed.update(map(id, parts))
            yield node.lineno, "".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and id(node) not in passed:
            yield node.lineno, str(node.value)


def nameless(text: str) -> list[str]:
    """The flags of settings in a sentence that does not name the setting."""
    flags = [flag for flag in re.findall(r"--[a-z-]+", text) if flag in FLAGS and text != flag]
    named = set(re.findall(r"(?<![\w-])\w+", text)) if flags else set()
    return [flag for flag in flags if FLAGS[flag] not in named]


def test_hints_name_settings_and_not_their_flags_alone() -> None:
    found = [
        f"{module}:{line}: {text}"
        for module in modules("app", "backends", "quant")
        if not under(module.name, "hearth.app.cli")
        for line, text in texts(module)
        if nameless(text)
    ]
    assert found == []


def test_a_flag_alone_is_noticed() -> None:
    assert nameless("Use a smaller --ctx.") == ["--ctx"]
    assert nameless("Set a smaller context (--ctx), or kv_type q8_0 (--kv-type).") == []
    assert nameless("Set the context to 5 (--kv-type).") == ["--kv-type"]
