"""The version of Hearth, so that a front end and a host of different versions notice it."""

from __future__ import annotations

from functools import cache

from hearth.quant.versions import installed_version


@cache
def hearth_version() -> str:
    """The installed version; "0" in a source tree that is not installed."""
    return installed_version("hearth-llm") or "0"
