"""The version of Hearth, so that a front end and a host of different versions notice it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def hearth_version() -> str:
    """The installed version; "0" in a source tree that is not installed."""
    try:
        return version("hearth-llm")
    except PackageNotFoundError:
        return "0"
