"""The interface of a grammar while a sequence is sampled."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """The state of one sequence in its grammar. Not thread-safe.

    Every method raises `InternalError` or `InvalidParameter` if a bound of the library is met.
    """

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. An end token may if the text so far is complete."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[V]: mask of the tokens that may come next."""
        ...

    def accept(self, token: int) -> None:
        """Advance by `token`, which must be allowed. Not called for end tokens."""
        ...

    def copy(self) -> Matcher:
        """An independent matcher in the same state; it may share the bounds of this one."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing but the end can follow."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the client about restrictions of the text beyond its grammar."""
        ...
