"""Large memory in large pages: weights are read once for each token, and looking up a page for
every 4 KiB of them takes its time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

_VARIABLE: Final = "GLIBC_TUNABLES"
_TUNABLE: Final = "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a child that computes: glibc asks the kernel for large pages then, where
    that leaves it to programs (`madvise`, as Linux usually does). What the user has set stays.
    """
    set_before = environment.get(_VARIABLE, "")
    if not sys.platform.startswith("linux") or _TUNABLE in set_before:
        return dict(environment)
    tunables = ":".join(filter(None, (set_before, f"{_TUNABLE}=1")))
    return {**environment, _VARIABLE: tunables}
