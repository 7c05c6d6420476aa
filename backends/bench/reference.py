"""What the engine is measured beside: another way to run the same weights."""

from __future__ import annotations

from typing import Protocol


class Reference(Protocol):
    """Greedy sessions that decode at the same time. No token ends one."""

    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """Begin a session with each of `histories`, of which the last token is not computed.

        Args:
            shared_tokens: so many first tokens are the same in all.
        """
        ...

    def decode(self, steps: int) -> float:
        """Seconds of `steps` more tokens for each session."""
        ...

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from `prompt` to the likeliest token after it."""
        ...

    def clear(self) -> None:
        """Forget all sessions."""
        ...

    def close(self) -> None:
        """Free what it holds. May be called twice."""
        ...
