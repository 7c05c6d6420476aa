"""The versions of installed Python packages."""

from __future__ import annotations

from importlib import metadata


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
