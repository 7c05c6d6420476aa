"""Tests that are coroutines, each in its own event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

P = ParamSpec("P")


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """`test` as a plain function that pytest can call, with its fixtures."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def go() -> None:
            await test(*args, **kwargs)

        asyncio.run(go())

    return run
