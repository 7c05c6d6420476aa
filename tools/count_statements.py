"""Counts the statements of Python files: a measure of code that formatting does not change.

    python tools/count_statements.py [FOLDER]      (default: app)

Prints one line for each package of FOLDER and the total. Every `ast.stmt` counts as one:
assignments, definitions, `if`, `return`, docstrings and so on, nested ones included.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path


def count(file: Path) -> int:
    """Number of statements in `file`. Raises `SyntaxError` if it is not Python."""
    tree = ast.parse(file.read_bytes(), filename=str(file))
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "app")
    counts: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        counts[str(file.relative_to(folder.parent).parent)] += count(file)
    for package, statements in counts.items():
        print(f"{statements:>8,}  {package}")
    print(f"{counts.total():>8,}  total")


if __name__ == "__main__":
    main()
