"""How a text is cut into windows, and which tokens of a window are scored.

Perplexities of different protocols, windows or texts cannot be compared, so each is reported with
the name of its protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hearth.quant.evaluation.errors import TextTooShort

Protocol = Literal["windows", "second-half"]
"""windows: scores every token of non-overlapping windows, as papers on GPTQ and AWQ do with windows
of 2,048 tokens. second-half: scores only the second half of such windows, as llama.cpp's
`llama-perplexity` does, usually with 512 tokens.
"""
FEWEST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed together; `tokens[first:]` are scored, each from those before it."""

    tokens: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        return len(self.tokens) - self.first


def windows(
    ids: Sequence[int], beginning: Sequence[int], length: int, protocol: Protocol, name: str
) -> list[Window]:
    """The windows of a text. Tokens after the last whole window are not used; a text that is
    shorter than a window is one window.

    Args:
        ids: tokens of the text, without `beginning`.
        beginning: the tokens that the model expects before any text, its beginning-of-text token or
            nothing. Each window starts with them. With "second-half" they replace the first tokens
            of a window, as in `llama-perplexity`; these are not scored there.
        length: of a window, `beginning` included.
        name: of the text, for the error.

    Raises:
        TextTooShort: there are under 32 tokens, or `length` leaves none to score.
    """
    if len(ids) < FEWEST_TOKENS:
        raise TextTooShort(
            f"{name} has {len(ids):,} tokens; at least {FEWEST_TOKENS} are needed.",
            "Take a text of a few pages.",
        )
    text = tuple(ids)
    head = tuple(beginning)
    length = min(length, len(head) + len(text))
    halves = protocol == "second-half"
    first = length // 2 + 1 if halves else max(1, len(head))
    if not len(head) <= first < length:
        raise TextTooShort(
            f"Windows of {length} tokens leave none to score.", "Take a longer context (--context)."
        )
    if halves:
        text = head + text
        pieces = (text[at : at + length] for at in range(0, len(text) - length + 1, length))
        return [Window(head + piece[len(head) :], first) for piece in pieces]
    step = length - len(head)
    return [
        Window(head + text[at : at + step], first) for at in range(0, len(text) - step + 1, step)
    ]
