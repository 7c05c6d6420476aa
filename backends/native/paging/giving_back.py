"""Memory of blocks that nobody uses any more, given back."""

from __future__ import annotations

from collections.abc import Iterable

from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.store import PageStore


def give_back(groups: Iterable[Group], store: PageStore) -> None:
    """Let `store` have memory for blocks in use only, where those after the last of them are at
    least half of all: fewer are soon wanted again.

    Looks at each block that was taken since it was done last, so it is for when nothing runs.
    """
    for group in groups:
        pool = group.pool
        end = pool.forget_free_end()
        if 2 * end <= pool.capacity:
            store.shrink(group.number, end)
            pool.capacity = store.capacity(group.number)
