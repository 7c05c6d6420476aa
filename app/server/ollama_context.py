"""`options.num_ctx`, the limit on the tokens of prompt and answer, and the time to load a model."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from hearth.backends.contract import Backend, Event, Request, Started
from hearth.backends.errors import prompt_too_long


class LimitedContext:
    """Wraps `backend` with a limit of `num_ctx` tokens on prompt and answer together.

    Args:
        num_ctx: None: the context of the loaded model.

    Attributes:
        load_s: seconds until the model was ready; close to 0 if it was loaded.
    """

    def __init__(self, backend: Backend, num_ctx: int | None) -> None:
        self._backend = backend
        self._num_ctx = num_ctx
        self.load_s = 0.0

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; closing the iterator cancels it.

        Raises:
            PromptTooLong: the prompt has `num_ctx` tokens or more.
        """
        began_s = time.perf_counter()
        context = (await self._backend.info()).context
        self.load_s = time.perf_counter() - began_s
        request, notices = await self._limited(request, context)
        generated = cast(AsyncGenerator[Event, None], self._backend.generate(request))
        async with aclosing(generated) as events:
            async for event in events:
                if notices and isinstance(event, Started):
                    event = replace(event, notices=(*notices, *event.notices))
                yield event

    async def _limited(self, request: Request, context: int) -> tuple[Request, tuple[str, ...]]:
        """`request` with `max_tokens` limited by `num_ctx`, and notices.

        Args:
            context: of the loaded model, in tokens; 0: unknown, the model is remote.
        """
        num_ctx = self._num_ctx
        if num_ctx is None or num_ctx == context:
            return request, ()
        if context == 0:
            return request, ("options.num_ctx has no effect on a remote model.",)
        if num_ctx > context:
            notice = f"options.num_ctx {num_ctx} exceeds the model's context: {context} is used."
            return request, (notice,)
        prompt_tokens = len((await self._backend.render(request)).ids)
        free = num_ctx - prompt_tokens
        if free < 1:
            raise prompt_too_long(
                request.prompt_field,
                prompt_tokens,
                num_ctx,
                answers=True,
                hint=f"Shorten it, or raise options.num_ctx: up to {context} fit.",
            )
        return replace(request, max_tokens=min(request.max_tokens or free, free)), ()
