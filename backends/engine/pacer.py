"""How many prefill tokens a step may take while others stream."""

from __future__ import annotations

from typing import Final

FIRST_LOOK: Final = 32
"""Prefill tokens of the first mixed step, before anything is known."""
LEAST: Final = 4
"""Prefill tokens that a step takes at least."""
_FASTER_LEARNING: Final = 0.5
_SLOWER_LEARNING: Final = 0.2
_LEAST_TOKEN_S: Final = 1e-9


class Pacer:
    """Cuts prefill so that a step takes about `target_s`, or twice a step without prefill where
    that is longer: prefill never takes more than half of the time from those who stream, and never
    starves either.

    It learns two things from the steps that it is shown: how long one takes that only decodes, by
    the number of sequences, and what a prefill token adds.

    Args:
        target_s: seconds of inter-token latency to aim at.
        most: tokens of the largest step.
    """

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s = target_s
        self._most = most
        self._decode_s: dict[int, float] = {}
        self._token_s: float | None = None
        self._largest = min(FIRST_LOOK, most)
        """Prefill tokens of the largest step that others streamed in."""

    def allowance(self, decoding: int) -> int:
        """Prefill tokens for a step in which `decoding` sequences stream."""
        if decoding == 0:
            return self._most
        if self._token_s is None:
            return min(FIRST_LOOK, self._most)
        # Where no step without prefill was seen, what a token costs has decoding in it.
        alone_s = self._alone_s(decoding) or 0.0
        room_s = max(self._target_s - alone_s, alone_s)
        # At most twice the largest: one lucky timing must not become one long step.
        fits = min(int(room_s / self._token_s), 2 * self._largest)
        return min(max(fits, LEAST), self._most)

    def observe(self, decoding: int, prefill: int, seconds: float) -> None:
        """Learn from a step that took `seconds` for so many sequences that decode and so many
        prefill tokens.
        """
        if prefill == 0:
            known = self._decode_s.get(decoding)
            self._decode_s[decoding] = seconds if known is None else _towards_less(known, seconds)
            return
        if decoding:
            self._largest = max(self._largest, prefill)
        alone_s = self._alone_s(decoding) if decoding else None
        # Where a step costs less than one without prefill did, the difference says nothing.
        added_s = seconds if alone_s is None else max(seconds - alone_s, 0.1 * seconds)
        token_s = max(added_s / prefill, _LEAST_TOKEN_S)
        self._token_s = token_s if self._token_s is None else _towards(self._token_s, token_s)

    def _alone_s(self, decoding: int) -> float | None:
        """Seconds of a step without prefill, from the nearest number of sequences seen."""
        if not self._decode_s:
            return None
        nearest = min(self._decode_s, key=lambda count: abs(count - decoding))
        return self._decode_s[nearest]


def _towards(known: float, seen: float) -> float:
    """A moving average that believes bad news sooner than good."""
    rate = _FASTER_LEARNING if seen > known else _SLOWER_LEARNING
    return known + rate * (seen - known)


def _towards_less(known: float, seen: float) -> float:
    """A moving average of what a step takes without prefill, which prefill may then take too: one
    slow step, as where memory was moved, must not make the next ones long.
    """
    rate = _FASTER_LEARNING if seen < known else _SLOWER_LEARNING
    return known + rate * (min(seen, 2 * known) - known)
