"""Which Hearth this is: a front end and a host of different versions must not talk past each
other.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def hearth_version() -> str:
    """The installed version; "0" in a tree that is not installed."""
    try:
        return version("hearth-llm")
    except PackageNotFoundError:
        return "0"
