"""A call into the library on a stack of its own, for what recurses once for each character."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from hearth.backends.errors import Busy

Result = TypeVar("Result")

_PAGE_BYTES: Final = 4096
_ONE_AT_A_TIME: Final = threading.Lock()
"""The size of a new thread's stack is a setting of the whole process."""


def call_deeply(work: Callable[[], Result], stack_bytes: int) -> Result:
    """What `work` returns, on a thread with `stack_bytes` of stack, or a little more. Of the stack
    only what is used takes memory.

    Raises:
        Busy: the system has no room for such a thread.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="deep call") as thread:
        with _ONE_AT_A_TIME:
            before = threading.stack_size(-(-stack_bytes // _PAGE_BYTES) * _PAGE_BYTES)
            try:
                result = thread.submit(work)
            except RuntimeError as error:
                raise Busy(
                    f"There is no memory for a thread with a stack of {stack_bytes:,} bytes.",
                    "Try again later, or close other programs.",
                    retry_after_s=1.0,
                ) from error
            finally:
                threading.stack_size(before)
        return result.result()
