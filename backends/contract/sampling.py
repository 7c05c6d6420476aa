"""How the next token of an answer is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from hearth.backends.contract.fields import MOST_TOKENS, MOST_TOP, number, numbers_of

Speculate = Literal["auto", "off", "ngram", "draft", "medusa"]
"""Where drafts come from: tokens that are guessed before a step verifies them.

auto: any of the sources that are available, where drafting pays off. ngram: the tokens that
followed the same tokens earlier. draft: a draft model. medusa: Medusa heads of the model.
"""
SpeculateRule = Literal["match", "rejection"]
"""Which drafted tokens are accepted.

match: those that the model draws as well, so that the text is the same as without drafts.
rejection: by rejection sampling (arXiv 2211.17192), which preserves the distribution of the text
but not the text itself.
"""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `backends.engine.validate` checks every field before any model
    work.

    Steps are applied in this order: logit bias, repetition, frequency and presence penalties, DRY,
    then top-k, typical-p, top-p, min-p, XTC, temperature, draw.
    """

    temperature: float = number(0.7, 0, 10, "higher is more varied; 0 takes the likeliest token")
    """At 0, ties go to the lowest id."""
    top_k: int = number(40, 0, MOST_TOKENS, "keep the k likeliest tokens; 0 is off")
    top_p: float = number(
        0.95, 0, 1, "keep the likeliest tokens that reach p; 1 is off", above=True
    )
    min_p: float = number(0.05, 0, 1, "drop tokens below this share of the likeliest; 0 is off")
    typical_p: float = number(
        1.0, 0, 1, "keep the most typical tokens that reach p; 1 is off", above=True
    )
    """Locally typical sampling (arXiv 2202.00666)."""
    repetition_penalty: float = number(
        1.0, 0, 10, "makes said tokens less likely; 1 is off", above=True
    )
    """Divides positive and multiplies negative logits of tokens seen in the window (arXiv
    1909.05858).
    """
    repetition_window: int = number(64, -1, MOST_TOKENS, "tokens to look back; -1 all, 0 none")
    """The window of the repetition, frequency and presence penalties; it includes the prompt."""
    frequency_penalty: float = number(0.0, -2, 2, "subtracted for each occurrence of a token")
    presence_penalty: float = number(0.0, -2, 2, "subtracted once for a token that occurs")
    dry_multiplier: float = number(0.0, 0, 100, "DRY: penalty for a repeated run; 0 is off")
    dry_base: float = number(1.75, 1, 10, "DRY: growth of the penalty for each token of the run")
    dry_allowed_length: int = number(2, 1, MOST_TOKENS, "DRY: shorter runs are free")
    dry_window: int = number(-1, -1, MOST_TOKENS, "DRY: tokens to look back; -1 all, 0 none")
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = number(0.0, 0, 1, "XTC: chance to drop the top choices; 0 is off")
    """Exclude Top Choices: at each position, with this probability, all top choices but the least
    likely are dropped.
    """
    xtc_threshold: float = number(0.1, 0, 1, "XTC: probability that makes a token a top choice")
    """Above 0.5 XTC never drops a token, because there is at most one top choice."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to logits by token id, each in [-100, 100]; -100 bans a token."""
    seed: int | None = number(None, 0, 2**64 - 1, "same seed, same text")
    """The random number for a position depends only on (seed, position). None: a fresh seed."""
    logprobs: int | None = number(None, 0, MOST_TOP, "log probabilities of the n likeliest tokens")
    """The log probability of each drawn token is returned as well. None: no log probabilities."""


SAMPLING_FIELDS: Final = numbers_of(SamplingParams)
