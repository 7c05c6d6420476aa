"""The prefill budget: tokens of prompts, and of texts that are embedded or ranked, that a step may
compute while others stream.
"""

from __future__ import annotations

from typing import Final

FIRST_LOOK: Final = 32
"""Prefill tokens of the first mixed step, before anything is known."""
LEAST: Final = 4
"""Prefill tokens that a step takes at least."""
AIM: Final = 0.8
"""Of the target, since steps take longer at times."""
TOGETHER_S: Final = 0.75
"""Those who stream wait for prompts that are computed together so long in a step,"""
SHORT_S: Final = 2.0
"""and for prompts that take no longer."""
UNMEASURED_DEPTH: Final = 256
"""Behind so many others a token is taken to cost twice as much as the first, until that is
measured: llama.cpp's flash attention on processors, which has no tiles for the few rows of a mixed
step."""
_FASTER_LEARNING: Final = 0.5
_SLOWER_LEARNING: Final = 0.2
_LEAST_S: Final = 1e-9
_LEAST_CELL_S: Final = 1e-15
_LITTLE: Final = 0.5
"""Attention that takes less than this, by what a token takes otherwise, does not make prefill
smaller: it is made of whole tiles.
"""
_LEAST_OF_TEXTS: Final = 0.25
"""Of the time that prefill may take, texts take so much if they must, or they would never come to
an end while prompts arrive.
"""


class PrefillBudget:
    """Cuts prefill so that a step takes about `AIM` of `target_s`, or twice a step without prefill
    where that is longer: prefill takes no more than half of the time from those who stream, and
    never starves either.

    Many short prompts need not wait for that (`together`). Cutting them small takes as much from
    streams in all, and keeps the next client waiting.

    Texts that are embedded or ranked take what prefill has left of its share, in the same turn.

    It learns from the steps that it is shown how long one takes that only decodes, by the number of
    sequences, and what a prefill token adds, by itself and for each cell that it attends to; and
    from the texts what one of their tokens takes. Steps without others have more rows, for which
    attention to a cell may cost much less: they are learned from apart.

    Args:
        target_s: seconds of inter-token latency to aim at.
        most: tokens of the largest step.
    """

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s = target_s
        self._most = most
        self._decode_s: dict[int, float] = {}
        self._prefill = _Tokens(most)
        """In steps with sequences that stream,"""
        self._apart = _Tokens(most)
        """and in those without."""
        self._texts = _Tokens(most)

    def allowance(self, decoding: int, start: int = 0) -> int:
        """Prefill tokens with `start` tokens before them for a step in which `decoding` sequences
        stream.
        """
        if decoding == 0:
            return self._most
        return self._mixed.fitting(self._share_s(decoding), start)

    def weight(self, decoding: int, start: int) -> float:
        """As how many of the `allowance`, or of those `together`, a prefill token counts that has
        `start` tokens before it: 1 and more.
        """
        return (self._mixed if decoding else self._unmixed).weight(start)

    def together(self) -> int:
        """Prefill tokens for a step that those who stream wait for; 0 while nothing is known."""
        token_s = self._unmixed.token_s
        return 0 if token_s is None else min(max(int(TOGETHER_S / token_s), LEAST), self._most)

    def is_short(self, tokens: int, start: int) -> bool:
        """Whether those who stream may wait for this many prefill tokens behind `start` others."""
        known = self._unmixed
        return known.token_s is not None and known.cost_s(tokens, tokens * start) <= SHORT_S

    def allowance_of_texts(
        self, decoding: int, prefill: int, cells: int = 0, start: int = 0
    ) -> int:
        """Tokens of texts, with `start` tokens before them, for a turn whose step has `decoding`
        sequences that stream, and `prefill` prefill tokens with `cells` tokens before them, all
        together.
        """
        if decoding == 0:
            return max(self._most - prefill, int(_LEAST_OF_TEXTS * self._most), 1)
        share_s = self._share_s(decoding)
        left_s = share_s - self._mixed.cost_s(prefill, cells)
        known = self._mixed if self._texts.token_s is None else self._texts
        return known.fitting(max(left_s, _LEAST_OF_TEXTS * share_s), start)

    def observe(self, decoding: int, prefill: int, seconds: float, cells: int = 0) -> None:
        """Learn from a step that took `seconds` for so many sequences that decode and so many
        prefill tokens, with `cells` tokens before them, all together.
        """
        if prefill == 0:
            before = self._decode_s.get(decoding)
            self._decode_s[decoding] = seconds if before is None else _towards_less(before, seconds)
            return
        # Where a step costs less than one without prefill did, the difference says nothing.
        alone_s = self._alone_s(decoding) if decoding else 0.0
        added_s = max(seconds - alone_s, 0.1 * seconds)
        known = self._prefill if decoding else self._apart
        known.learn(prefill, cells, added_s, among_streams=decoding > 0)

    def observe_texts(self, decoding: int, tokens: int, seconds: float, cells: int = 0) -> None:
        """Learn from texts of `tokens` tokens, with `cells` tokens before them, all together, which
        took `seconds` after a step in which `decoding` sequences stream.
        """
        self._texts.learn(tokens, cells, seconds, among_streams=decoding > 0)

    @property
    def _mixed(self) -> _Tokens:
        """What prefill costs next to those who stream, or a guess."""
        if self._prefill.token_s is None:
            self._prefill.guess(self._apart)
        return self._prefill

    @property
    def _unmixed(self) -> _Tokens:
        """What it costs where they wait."""
        return self._prefill if self._apart.token_s is None else self._apart

    def _share_s(self, decoding: int) -> float:
        """Seconds for prefill in a step in which `decoding` sequences stream."""
        alone_s = self._alone_s(decoding)
        return max(AIM * self._target_s - alone_s, alone_s)

    def _alone_s(self, decoding: int) -> float:
        """Seconds of a step without prefill: between the numbers of sequences that were seen, and
        beyond them, on the straight line through the nearest two; 0 if nothing is known.
        """
        known = sorted(self._decode_s, key=lambda count: abs(count - decoding))[:2]
        if not known or known[0] == decoding or len(known) == 1:
            return self._decode_s[known[0]] if known else 0.0
        near, far = known
        near_s = self._decode_s[near]
        slope = max(0.0, (self._decode_s[far] - near_s) / (far - near))
        return max(near_s + slope * (decoding - near), near_s * min(1.0, decoding / near))


class _Tokens:
    """What one of a kind of tokens takes, and so how many fit into a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.token_s: float | None = None
        self._cell_s = 0.0
        """What a token takes more for each one before it."""
        self._largest = min(FIRST_LOOK, most)
        """Tokens of the largest turn that others streamed in, with their weight."""

    def fitting(self, room_s: float, start: int = 0) -> int:
        """Tokens with `start` others before them that take `room_s`."""
        # Where no step without prefill was seen, what a token costs has decoding in it.
        if self.token_s is None:
            return min(FIRST_LOOK, self._most)
        # At most twice the largest: one lucky timing must not become one long step.
        fits = int(min(room_s / self.token_s, 2 * self._largest) / self.weight(start))
        return min(max(fits, LEAST), self._most)

    def weight(self, start: int) -> float:
        """What a token behind `start` others takes, by what one behind none does; 1 where there is
        little between them.
        """
        more = start / UNMEASURED_DEPTH
        if self.token_s is not None:
            more = start * self._cell_s / self.token_s
        return 1.0 if more < _LITTLE else 1.0 + more

    def cost_s(self, tokens: int, cells: int) -> float:
        """Seconds of `tokens` tokens with `cells` before them, all together; 0 if not known."""
        return 0.0 if self.token_s is None else tokens * self.token_s + cells * self._cell_s

    def guess(self, other: _Tokens) -> None:
        """Take a token to cost what one of `other` does, with nothing measured for what is before
        it.
        """
        self.token_s = other.token_s
        self._cell_s = (other.token_s or 0.0) / UNMEASURED_DEPTH

    def learn(self, tokens: int, cells: int, seconds: float, *, among_streams: bool) -> None:
        """Note that `tokens` tokens took `seconds`, with `cells` before them, all together."""
        if among_streams:
            weighted = int(tokens * self.weight(cells // tokens))
            self._largest = max(self._largest, weighted)
        if self.token_s is None:
            token_s = max(seconds / (tokens + cells / UNMEASURED_DEPTH), _LEAST_S)
            self.token_s, self._cell_s = token_s, token_s / UNMEASURED_DEPTH
            return
        # What was expected to take most of the time is most to blame for the difference.
        expected_s = self.cost_s(tokens, cells)
        own = tokens * self.token_s / expected_s
        wrong = _towards(1.0, seconds / expected_s) - 1.0
        self.token_s = max(self.token_s * (1.0 + own * wrong), _LEAST_S)
        self._cell_s = max(self._cell_s * (1.0 + (1.0 - own) * wrong), _LEAST_CELL_S)


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
