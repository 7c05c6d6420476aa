"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgt", 1)}
"""Bytes of each unit, in lower case: SI's kB, MB, GB, TB are powers of 1000, IEC's KiB, MiB, GiB,
TiB of 1024, and so are K, M, G, T alone, as in `ls -h` and `docker run --memory`."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_size(text: str) -> int | None:
    """The bytes that `text` means, such as "512MiB", "2 GB", "1.5G" or "1048576", rounded down;
    None if it is no size.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        return None
    return int(Fraction(found[1]) * _UNITS[found[2]])


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as exactly `size_bytes`."""
    texts = []
    for unit in ("KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"):
        number, rest = divmod(size_bytes, _UNITS[unit.lower()])
        if number and not rest:
            texts.append(f"{number}{unit}")
    return min([*texts, str(size_bytes)], key=len)


def readable_size(size_bytes: float) -> str:
    """A size in decimal units, such as "4.7 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
