"""DRY: a penalty on tokens that would extend a repeated run."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from copy import copy
from typing import Final

import numpy as np

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.selection import Sparse
from hearth.backends.text.tokenizer import Tokenizer

_LARGEST_PENALTY: Final = 1e30
"""Keeps logits finite in float32, however long the repeated run is."""
_FIRST_CAPACITY: Final = 256


class RepeatedRuns:
    """DRY ("Don't Repeat Yourself", p-e-w, text-generation-webui pull request 5677).

    A token that would continue a run of `n` tokens which already occurred loses
    `multiplier * base ** (n - allowed_length)` if `n >= allowed_length`. No run reaches across a
    breaker, and a breaker is never penalised.

    For each position, the length of the common suffix of the text up to there and of the whole text
    is stored; a new token either extends it by one or resets it to zero. That is one vector
    operation over the text per token.

    Args:
        window: number of last tokens that are searched; -1: all, 0: none.
        breakers: token ids at which runs end.
        tokens: the prompt.
    """

    def __init__(self, window: int, breakers: Set[int], tokens: Sequence[int] = ()) -> None:
        self._window = window
        self._breakers = frozenset(breakers)
        self._size = 0 if window == 0 else len(tokens)
        capacity = max(_FIRST_CAPACITY, 2 * self._size)
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._runs = np.zeros(capacity, dtype=np.int32)
        if self._size:
            self._tokens[: self._size] = tokens
            self._runs[: self._size] = self._runs_of(list(tokens))

    def add(self, token: int) -> None:
        """Add the next token; O(text) in numpy, a few microseconds for ten thousand tokens."""
        if self._window == 0:
            return
        if self._size == self._tokens.size:
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._runs = np.concatenate((self._runs, np.zeros_like(self._runs)))
        size = self._size
        self._tokens[size] = token
        self._size = size + 1
        if token in self._breakers:
            self._runs[: self._size] = 0
            return
        if size:
            # The run that ends at a position continues the one that ended just before it.
            same = self._tokens[:size] == token
            self._runs[1:size] = (self._runs[: size - 1] + 1) * same[1:]
            self._runs[0] = same[0]
        self._runs[size] = 0

    def copy(self) -> RepeatedRuns:
        """An independent copy."""
        made = copy(self)
        made._tokens, made._runs = self._tokens.copy(), self._runs.copy()
        return made

    def run_lengths(self, allowed_length: int) -> dict[int, int]:
        """For each token, the longest run of `allowed_length` or more that it would continue."""
        start = max(0, self._size - self._window) if self._window > 0 else 0
        if self._size - start < 2:
            return {}
        runs = np.minimum(self._runs[start : self._size - 1], np.arange(1, self._size - start))
        hits = np.flatnonzero(runs >= max(1, allowed_length))
        longest: dict[int, int] = {}
        for token, run in zip(
            self._tokens[start + hits + 1].tolist(), runs[hits].tolist(), strict=True
        ):
            if run > longest.get(token, 0) and token not in self._breakers:
                longest[token] = run
        return longest

    def penalties(self, params: SamplingParams) -> Sparse | None:
        """Tokens that would continue a repeated run, and the penalty of each; None if none."""
        longest = self.run_lengths(params.dry_allowed_length)
        if not longest:
            return None
        ids = np.fromiter(longest.keys(), dtype=np.intp, count=len(longest))
        over = np.fromiter(longest.values(), dtype=np.float64, count=len(longest))
        over -= params.dry_allowed_length
        if params.dry_base > 1.0:
            over = np.minimum(over, math.log(_LARGEST_PENALTY) / math.log(params.dry_base))
        sizes = params.dry_multiplier * params.dry_base**over
        return ids, np.minimum(sizes, _LARGEST_PENALTY).astype(np.float32)

    def _runs_of(self, tokens: list[int]) -> list[int]:
        """Common suffix length of `tokens[:i + 1]` and `tokens` for each i, 0 for the last: O(n).

        This is the Z-function (Gusfield 1997, section 1.4) of the reversed text, capped at the last
        breaker.
        """
        size = len(tokens)
        cap = next((n for n in range(size) if tokens[size - 1 - n] in self._breakers), size)
        if cap == 0:
            return [0] * size
        text = tokens[::-1]
        prefix = [0] * size
        left = right = 0
        for i in range(1, size):
            length = min(right - i, prefix[i - left]) if i < right else 0
            while i + length < size and text[length] == text[i + length]:
                length += 1
            prefix[i] = length
            if i + length > right:
                left, right = i, i + length
        return [min(length, cap) for length in reversed(prefix)]


def breaker_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> frozenset[int]:
    """Token ids at which DRY's runs end.

    These are the tokens whose text contains a breaker; for a breaker that no token contains, the
    last token of its encoding. Reads the whole vocabulary: compute it once per set of breakers.
    """
    wanted = [breaker.encode() for breaker in breakers]
    ids: set[int] = set()
    met: set[bytes] = set()
    for token in range(tokenizer.vocab_size):
        piece = tokenizer.piece(token)
        inside = [breaker for breaker in wanted if breaker in piece]
        if inside:
            ids.add(token)
            met.update(inside)
    for breaker in wanted:
        if breaker not in met:
            ids.update(tokenizer.encode(breaker.decode(), special=False, add_bos=False)[-1:])
    return frozenset(ids)
