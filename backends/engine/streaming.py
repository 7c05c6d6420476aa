"""Streaming with attention sinks (arXiv 2309.17453): a sequence that outgrows its memory keeps its
first tokens and the newest ones, and forgets what is between them.

Positions are those within the cache: what follows the forgotten tokens moves up to the sinks. What
keys and values hold of forgotten tokens stays in those that are kept; it is not computed again.
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
"""A quarter of the tokens after the sinks is forgotten at once, so that a key is moved four times
at most.
"""


@dataclass(frozen=True, slots=True)
class Streaming:
    """When which tokens are forgotten. That depends on how many came before and on nothing else, so
    that a sequence that is computed again, in other steps, gets the same keys and values.

    Attributes:
        sinks: first tokens, which stay.
        most: tokens in memory at most.
        step: tokens that are forgotten together, when `most` are there and another comes.
    """

    sinks: int
    most: int
    step: int

    @classmethod
    def of(cls, sinks: int, context: int, page: int) -> Streaming:
        """For a memory of `context` tokens of one sequence, in blocks of `page`.

        Raises:
            InvalidParameter: it is too small for so many sinks.
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
        """How many tokens are forgotten before the one after the first `computed`."""
        return 0 if computed < self.most else ((computed - self.most) // self.step + 1) * self.step

    def kept(self, tokens: Seq[int], dropped: int) -> list[int]:
        """What of `tokens` is in memory once `dropped` are forgotten."""
        return [*tokens[: self.sinks], *tokens[self.sinks + dropped :]]

    def notice(self, dropped: int, total: int) -> str:
        """What people should know of a text of `total` tokens, `dropped` of them forgotten."""
        kept = f"the first {self.sinks} and " if self.sinks else ""
        return (
            f"Streaming with attention sinks: the model saw {kept}the last"
            f" {total - self.sinks - dropped:,} tokens at the end; {dropped:,} earlier ones were"
            " forgotten."
        )

    def states(self, tokens: Seq[int], namespace: bytes) -> Iterator[tuple[int, bytes]]:
        """Numbers of forgotten tokens with which `tokens`, of `namespace`, may be continued, the
        most first, and the namespace of each: keys that stay depend on what was forgotten.
        """
        digest = blake2b(repr((self, namespace)).encode(), digest_size=16)
        digest.update(_bytes(tokens[: self.sinks]))
        found = []
        for dropped in range(self.step, self.dropped(len(tokens) - 1) + 1, self.step):
            digest.update(_bytes(tokens[self.sinks + dropped - self.step : self.sinks + dropped]))
            found.append((dropped, digest.digest()))
        yield from reversed(found)


def obstacle(config: ModelConfig) -> str:
    """Why no sequence of a model can forget tokens out of its middle; empty: it can."""
    if config.groups != (None,):
        return "its layers with a sliding window forget tokens of their own"
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    if any(rope.scaling is not None and rope.scaling.kind == "longrope" for rope in ropes):
        return "its rotary positions depend on the size of the context (longrope)"
    return ""


def _bytes(tokens: Seq[int]) -> bytes:
    return array(TOKEN_TYPE, tokens).tobytes()
