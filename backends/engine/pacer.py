"""How many prefill tokens a step may take while others stream."""

from __future__ import annotations

from typing import Final

FIRST_LOOK: Final = 32
"""Prefill tokens of the first mixed step, before anything is known."""
LEAST: Final = 4
"""Prefill tokens that a step takes at least."""
LOAN_S: Final = 2.0
"""Seconds that those who stream lend to prompts, beyond the share that prefill has anyway,"""
LOAN_STEP_S: Final = 0.5
"""and at most so many in a step."""
_FASTER_LEARNING: Final = 0.5
_SLOWER_LEARNING: Final = 0.2
_LEAST_TOKEN_S: Final = 1e-9


class Pacer:
    """Cuts prefill so that a step takes about `target_s`, or twice a step without prefill where
    that is longer: in the long run prefill takes no more than half of the time from those who
    stream, and never starves either.

    Short prompts need not wait for that. Cutting them small takes from those who stream as much in
    all, and keeps the next reader waiting. So prefill may borrow: up to `LOAN_STEP_S` in a step and
    up to `LOAN_S` in all, which steps that are shorter than they might be pay back.

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
        self._loan_s = LOAN_S
        """Seconds that may still be borrowed."""

    def allowance(self, decoding: int) -> int:
        """Prefill tokens for a step in which `decoding` sequences stream."""
        if decoding == 0:
            return self._most
        share_s = self._share_s(self._alone_s(decoding) or 0.0)
        return self._fitting(max(share_s, min(share_s + self._loan_s, LOAN_STEP_S)))

    def lasting(self, decoding: int) -> int:
        """The same for each of many steps: without what may be borrowed."""
        if decoding == 0:
            return self._most
        return self._fitting(self._share_s(self._alone_s(decoding) or 0.0))

    def observe(self, decoding: int, prefill: int, seconds: float) -> None:
        """Learn from a step that took `seconds` for so many sequences that decode and so many
        prefill tokens.
        """
        if prefill == 0:
            known = self._decode_s.get(decoding)
            self._decode_s[decoding] = seconds if known is None else _towards_less(known, seconds)
            self._borrow(-self._share_s(self._decode_s[decoding]))
            return
        alone_s = self._alone_s(decoding) if decoding else None
        if decoding:
            self._largest = max(self._largest, prefill)
            self._borrow(seconds - (alone_s or 0.0) - self._share_s(alone_s or 0.0))
        # Where a step costs less than one without prefill did, the difference says nothing.
        added_s = seconds if alone_s is None else max(seconds - alone_s, 0.1 * seconds)
        token_s = max(added_s / prefill, _LEAST_TOKEN_S)
        self._token_s = token_s if self._token_s is None else _towards(self._token_s, token_s)

    def _share_s(self, alone_s: float) -> float:
        """Seconds for prefill in a step that takes `alone_s` without any."""
        return max(self._target_s - alone_s, alone_s)

    def _fitting(self, room_s: float) -> int:
        """Prefill tokens that take `room_s`."""
        # Where no step without prefill was seen, what a token costs has decoding in it.
        if self._token_s is None:
            return min(FIRST_LOOK, self._most)
        # At most twice the largest: one lucky timing must not become one long step.
        fits = min(int(room_s / self._token_s), 2 * self._largest)
        return min(max(fits, LEAST), self._most)

    def _borrow(self, seconds: float) -> None:
        """Take up a loan, or pay back what is less than nothing."""
        self._loan_s = min(max(self._loan_s - seconds, 0.0), LOAN_S)

    def _alone_s(self, decoding: int) -> float | None:
        """Seconds of a step without prefill: between the numbers of sequences that were seen, and
        beyond them, on the straight line through the nearest two.
        """
        known = sorted(self._decode_s, key=lambda count: abs(count - decoding))[:2]
        if not known or known[0] == decoding or len(known) == 1:
            return self._decode_s[known[0]] if known else None
        near, far = known
        near_s = self._decode_s[near]
        slope = max(0.0, (self._decode_s[far] - near_s) / (far - near))
        return max(near_s + slope * (decoding - near), near_s * min(1.0, decoding / near))


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
