"""The prefill budget: how many tokens of prompts, and of texts that are embedded or ranked, may be
computed per step while other sequences stream.
"""

from __future__ import annotations

import math
from typing import Final

FIRST_LOOK: Final = 32
"""Prefill tokens of the first mixed step, before anything is measured."""
LEAST: Final = 4
"""Minimum number of prefill tokens of a step."""
AIM: Final = 0.8
"""Fraction of the target that steps aim at, since some steps take longer."""
TOGETHER_S: Final = 0.75
"""Duration, in seconds, of a step in which several prompts are computed while streams wait."""
SHORT_S: Final = 2.0
"""Streams wait only for prompts whose prefill takes at most this many seconds (`is_short`)."""
UNMEASURED_DEPTH: Final = 256
"""Until it is measured, a token with this many tokens before it is assumed to cost twice as much as
the first token, as in llama.cpp's flash attention on CPUs, which does not use tiles for the few
rows of a mixed step."""
_FASTER_LEARNING: Final = 0.5
_SLOWER_LEARNING: Final = 0.2
_LEAST_S: Final = 1e-9
_LEAST_CELL_S: Final = 1e-15
_LITTLE: Final = 0.5
"""Attention that costs less than this fraction of a token's other cost does not reduce the number
of prefill tokens, because prefill is made of whole tiles.
"""
_LEAST_OF_TEXTS: Final = 0.25
"""Share of the prefill time that embedded or ranked texts get even if prompts need all of it;
otherwise they would never finish while prompts keep arriving.
"""


class PrefillBudget:
    """Limits prefill so that a step takes about `AIM` times `target_s`, or twice as long as a step
    without prefill if that is longer. Even where the target cannot be met, prefill then takes at
    most half of the time from streams, and never starves.

    Many short prompts are exempt from this limit (`together`): cutting them into small pieces would
    cost the streams as much in total, and keep the next client waiting.

    Texts that are embedded or ranked get what prefill leaves of its share in the same iteration of
    the engine.

    From observed steps it learns how long a step that only decodes takes for each number of
    sequences, and what a prefill token adds: a fixed cost, and a cost for each KV cell it attends
    to. From texts it learns what one of their tokens costs. Prefill steps without streams have more
    rows, for which attention to a cell may cost much less, so they are measured separately.

    Args:
        target_s: target inter-token latency in seconds.
        most: tokens of the largest step.
    """

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s = target_s
        self._most = most
        self._decode_s: dict[int, float] = {}
        self._prefill = _Tokens(most)
        """Cost of prefill tokens in steps with sequences that stream."""
        self._apart = _Tokens(most)
        """Cost of prefill tokens in steps without such sequences."""
        self._texts = _Tokens(most)

    def allowance(self, decoding: int, start: int = 0) -> int:
        """How many prefill tokens, with `start` tokens before them, fit into a step in which
        `decoding` sequences stream.
        """
        if decoding == 0:
            return self._most
        return self._mixed.fitting(self._share_s(decoding), start)

    def weight(self, decoding: int, start: int) -> float:
        """How many tokens of `allowance` (or of `together`) a prefill token with `start` tokens
        before it counts for; at least 1.
        """
        return (self._mixed if decoding else self._unmixed).weight(start)

    def together(self) -> int:
        """Prefill tokens of a step that streams wait for; 0 while nothing is measured."""
        token_s = self._unmixed.token_s
        return 0 if token_s is None else min(max(int(TOGETHER_S / token_s), LEAST), self._most)

    def is_short(self, tokens: int, start: int) -> bool:
        """Whether streams may wait for `tokens` prefill tokens that have `start` tokens before
        them.
        """
        known = self._unmixed
        return known.token_s is not None and known.cost_s(tokens, tokens * start) <= SHORT_S

    def allowance_of_texts(
        self, decoding: int, prefill: int, cells: int = 0, start: int = 0
    ) -> int:
        """How many tokens of texts, with `start` tokens before them, fit next to a step with
        `decoding` sequences that stream and `prefill` prefill tokens, which have `cells` tokens
        before them in total.
        """
        if decoding == 0:
            return max(self._most - prefill, int(_LEAST_OF_TEXTS * self._most), 1)
        known = self._mixed if self._texts.token_s is None else self._texts
        return known.fitting(self._left_s(AIM, decoding, prefill, cells), start)

    def most_s_of_texts(self, decoding: int, prefill: int, cells: int = 0) -> float:
        """How many seconds texts may take at most, where `allowance_of_texts` aims at fewer."""
        return math.inf if decoding == 0 else self._left_s(1.0, decoding, prefill, cells)

    def observe(self, decoding: int, prefill: int, seconds: float, cells: int = 0) -> None:
        """Learn from a step of `seconds` that had `decoding` sequences that decode and `prefill`
        prefill tokens, with `cells` tokens before them in total.
        """
        if prefill == 0:
            before = self._decode_s.get(decoding)
            self._decode_s[decoding] = seconds if before is None else _towards_less(before, seconds)
            return
        # If a step takes less time than one without prefill did, the difference is meaningless.
        alone_s = self._alone_s(decoding) if decoding else 0.0
        added_s = max(seconds - alone_s, 0.1 * seconds)
        known = self._prefill if decoding else self._apart
        known.learn(prefill, cells, added_s, among_streams=decoding > 0)

    def observe_texts(self, decoding: int, tokens: int, seconds: float, cells: int = 0) -> None:
        """Learn from texts of `tokens` tokens, with `cells` tokens before them in total, which took
        `seconds` after a step in which `decoding` sequences streamed.
        """
        self._texts.learn(tokens, cells, seconds, among_streams=decoding > 0)

    @property
    def _mixed(self) -> _Tokens:
        """Cost of prefill in steps with streams, or a guess."""
        if self._prefill.token_s is None:
            self._prefill.guess(self._apart)
        return self._prefill

    @property
    def _unmixed(self) -> _Tokens:
        """Cost of prefill in steps that streams wait for, or that have none."""
        return self._prefill if self._apart.token_s is None else self._apart

    def _share_s(self, decoding: int, aim: float = AIM) -> float:
        """Seconds for prefill in a step in which `decoding` sequences stream."""
        alone_s = self._alone_s(decoding)
        return max(aim * self._target_s - alone_s, alone_s)

    def _left_s(self, aim: float, decoding: int, prefill: int, cells: int) -> float:
        """Seconds of `_share_s` that prefill leaves to texts."""
        share_s = self._share_s(decoding, aim)
        left_s = share_s - self._mixed.cost_s(prefill, cells)
        return max(left_s, _LEAST_OF_TEXTS * share_s)

    def _alone_s(self, decoding: int) -> float:
        """Seconds of a step without prefill for `decoding` sequences, interpolated or extrapolated
        on the line through the nearest two numbers that were observed; 0 if nothing is known.
        """
        known = sorted(self._decode_s, key=lambda count: abs(count - decoding))[:2]
        if not known or known[0] == decoding or len(known) == 1:
            return self._decode_s[known[0]] if known else 0.0
        near, far = known
        near_s = self._decode_s[near]
        slope = max(0.0, (self._decode_s[far] - near_s) / (far - near))
        return max(near_s + slope * (decoding - near), near_s * min(1.0, decoding / near))


class _Tokens:
    """What one token of a kind costs, and hence how many fit into a given time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.token_s: float | None = None
        self._cell_s = 0.0
        """Seconds that a token takes in addition for each token before it."""
        self._largest = min(FIRST_LOOK, most)
        """Weighted tokens of the largest step so far that had streams."""

    def fitting(self, room_s: float, start: int = 0) -> int:
        """How many tokens with `start` others before them fit into `room_s` seconds."""
        # If no step without prefill was observed, the cost of a token includes decoding.
        if self.token_s is None:
            return min(FIRST_LOOK, self._most)
        # At most twice the largest: one lucky measurement must not cause one long step.
        fits = int(min(room_s / self.token_s, 2 * self._largest) / self.weight(start))
        return min(max(fits, LEAST), self._most)

    def weight(self, start: int) -> float:
        """Cost of a token with `start` tokens before it, relative to a token with none; 1 where the
        difference is small.
        """
        more = start / UNMEASURED_DEPTH
        if self.token_s is not None:
            more = start * self._cell_s / self.token_s
        return 1.0 if more < _LITTLE else 1.0 + more

    def cost_s(self, tokens: int, cells: int) -> float:
        """Seconds of `tokens` tokens with `cells` tokens before them in total; 0 if not known."""
        return 0.0 if self.token_s is None else tokens * self.token_s + cells * self._cell_s

    def guess(self, other: _Tokens) -> None:
        """Assume the token cost of `other`, and the unmeasured default for each token before it."""
        self.token_s = other.token_s
        self._cell_s = (other.token_s or 0.0) / UNMEASURED_DEPTH

    def learn(self, tokens: int, cells: int, seconds: float, *, among_streams: bool) -> None:
        """Record that `tokens` tokens, with `cells` before them in total, took `seconds`."""
        if among_streams:
            weighted = int(tokens * self.weight(cells // tokens))
            self._largest = max(self._largest, weighted)
        if self.token_s is None:
            token_s = max(seconds / (tokens + cells / UNMEASURED_DEPTH), _LEAST_S)
            self.token_s, self._cell_s = token_s, token_s / UNMEASURED_DEPTH
            return
        # Attribute the error to the two parts in proportion to their expected time.
        expected_s = self.cost_s(tokens, cells)
        own = tokens * self.token_s / expected_s
        wrong = _towards(1.0, seconds / expected_s) - 1.0
        self.token_s = max(self.token_s * (1.0 + own * wrong), _LEAST_S)
        self._cell_s = max(self._cell_s * (1.0 + (1.0 - own) * wrong), _LEAST_CELL_S)


def _towards(known: float, seen: float) -> float:
    """A moving average that adopts larger values faster than smaller ones."""
    rate = _FASTER_LEARNING if seen > known else _SLOWER_LEARNING
    return known + rate * (seen - known)


def _towards_less(known: float, seen: float) -> float:
    """A moving average of the time of a step without prefill, which is also the time that prefill
    may take: one slow step, for example while memory was moved, must not make the next ones long.
    """
    rate = _FASTER_LEARNING if seen < known else _SLOWER_LEARNING
    return known + rate * (min(seen, 2 * known) - known)
