"""Streaming with attention sinks (arXiv 2309.17453): a sequence that outgrows its memory keeps its
first tokens and the newest ones, and forgets the tokens between them.

Positions are those within the cache: tokens after the forgotten ones move up to the sinks. The keys
and values that are kept were computed with the forgotten tokens in view; they are not recomputed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from hearth.backends.engine.kv.tree import TOKEN_TYPE
from hearth.backends.errors import InvalidParameter
from hearth.quant.families.config import ModelConfig

_SHARE: Final = 4
"""1/`_SHARE` of the tokens after the sinks are forgotten at once, so that a key is moved at most
`_SHARE` times.
"""


@dataclass(frozen=True, slots=True)
class Streaming:
    """Which tokens are forgotten, and when. This depends only on how many tokens came before, so
    that a sequence that is recomputed in other steps gets the same keys and values.

    Attributes:
        sinks: number of first tokens, which always stay.
        most: maximum number of tokens in memory.
        step: number of tokens that are forgotten together when `most` are held and another comes.
    """

    sinks: int
    most: int
    step: int

    @classmethod
    def of(cls, sinks: int, context: int, page: int) -> Streaming:
        """For a memory of `context` tokens per sequence, in blocks of `page` tokens.

        Raises:
            InvalidParameter: the memory is too small for this many sinks.
        """
        most = context // page * page
        step = (most - sinks) // (_SHARE * page) * page
        if step < 1:
            least = sinks + _SHARE * page
            raise InvalidParameter(
                "attention_sinks",
                f"attention_sinks is {sinks}, and the context has {context:,} tokens; {least:,} are"
                " the fewest that leave room for newer ones.",
                "Lower attention_sinks, or load the model with a larger context (--ctx).",
            )
        return cls(sinks, most, step)

    def dropped(self, computed: int) -> int:
        """How many tokens are forgotten before the token after the first `computed` is computed."""
        return 0 if computed < self.most else ((computed - self.most) // self.step + 1) * self.step

    def kept(self, tokens: Seq[int], dropped: int) -> list[int]:
        """The tokens of `tokens` that are in memory after `dropped` were forgotten."""
        return [*tokens[: self.sinks], *tokens[self.sinks + dropped :]]

    def notice(self, dropped: int, total: int) -> str:
        """The notice for the user of a text of `total` tokens, `dropped` of them forgotten."""
        kept = f"the first {self.sinks} and " if self.sinks else ""
        return (
            f"Streaming with attention sinks: the model saw {kept}the last"
            f" {total - self.sinks - dropped:,} tokens at the end; {dropped:,} earlier ones were"
            " forgotten."
        )

    def states(self, tokens: Seq[int], namespace: bytes) -> Iterator[tuple[int, bytes]]:
        """The states in which `tokens`, of `namespace`, may be continued: (number of forgotten
        tokens, namespace of that state), the largest number first. Each state has a namespace of
        its own, because the keys that stay depend on what was forgotten.
        """
        digest = blake2b(repr((self, namespace)).encode(), digest_size=16)
        digest.update(_bytes(tokens[: self.sinks]))
        states = []
        for dropped in range(self.step, self.dropped(len(tokens) - 1) + 1, self.step):
            digest.update(_bytes(tokens[self.sinks + dropped - self.step : self.sinks + dropped]))
            states.append((dropped, digest.digest()))
        yield from reversed(states)


def obstacle(config: ModelConfig) -> str:
    """Why sequences of a model cannot forget tokens from the middle; empty if they can."""
    if config.groups != (None,):
        return "its layers with a sliding window forget tokens of their own"
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    if any(rope.scaling is not None and rope.scaling.kind == "longrope" for rope in ropes):
        return "its rotary positions depend on the size of the context (longrope)"
    return ""


def _bytes(tokens: Seq[int]) -> bytes:
    return array(TOKEN_TYPE, tokens).tobytes()
