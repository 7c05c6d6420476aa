"""The unused part of pages, where SQLite leaves rows that it moved to another page.

Source: https://www.sqlite.org/fileformat2.html, section 1.6.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Final

from hearth.app.chats.errors import ChatsCorrupt

_HEAD: Final = struct.Struct(">BHHH")
"""Kind of page, first free block, number of cells, where their contents begin."""
_INTERIOR: Final = (2, 5)
_LEAF: Final = (10, 13)


def zero_gaps(file: io.RawIOBase, page_bytes: int, roots: Iterable[int]) -> None:
    """Overwrite the bytes between the pointers to cells and their contents, in all pages of these
    B-trees. SQLite never reads those bytes: others may read the file meanwhile, but not write it.

    Args:
        file: the database, with an empty write-ahead log.
        roots: numbers of root pages, from 1.

    Raises:
        ChatsCorrupt: a page is not what its parent says.
    """
    pending, seen = list(roots), set[int]()
    while pending:
        number = pending.pop()
        place = (number - 1) * page_bytes
        file.seek(place)
        page = file.read(page_bytes) or b""
        head = 100 if number == 1 else 0
        try:
            kind, _, cells, contents = _HEAD.unpack_from(page, head)
            gap = head + (12 if kind in _INTERIOR else 8)
            pointers = struct.unpack_from(f">{cells}H", page, gap)
            gap += 2 * cells
            contents = contents or 65536
            if number in seen or kind not in _INTERIOR + _LEAF or min(pointers, default=gap) < gap:
                raise struct.error
            if kind in _INTERIOR:
                children = (head + 8, *pointers)
                pending += [struct.unpack_from(">I", page, at)[0] for at in children]
        except struct.error:
            raise ChatsCorrupt(f"{file} is damaged at page {number}.") from None
        seen.add(number)
        left = page[gap : min((contents, *pointers))]
        if left.strip(b"\0"):
            file.seek(place + gap)
            file.write(bytes(len(left)))
