"""What the engine asks of a grammar while a sequence is drawn."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Where one sequence stands in its grammar. Not thread-safe.

    Every method raises `InternalError` or `InvalidParameter` if a bound of the library is met.
    """

    def allows(self, token: int) -> bool:
        """May `token` come next? An end token may where the text so far is complete."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[V]: every token that may come next."""
        ...

    def accept(self, token: int) -> None:
        """`token`, which is allowed, comes next; end tokens are not told."""
        ...

    def copy(self) -> Matcher:
        """One at the same place, which goes its own way; it may share the bounds of this one."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing but the end can follow."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What the client should know of how the text was restricted beyond its grammar."""
        ...
