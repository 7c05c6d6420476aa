"""How the next token of an answer is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `backends.engine.validate` checks every field before any model
    work.

    The order is: logit bias, repetition, frequency and presence penalties, DRY, then top-k,
    typical-p, top-p, min-p, XTC, temperature, draw. A value that switches a step off is given for
    each.
    """

    temperature: float = 0.7
    """0 is greedy (arg max, ties to the lowest id); up to 10."""
    top_k: int = 40
    """Keep the k likeliest; 0 is off."""
    top_p: float = 0.95
    """Keep the smallest set whose probability reaches p, in (0, 1]; 1 is off."""
    min_p: float = 0.05
    """Drop tokens below this share of the likeliest one, in [0, 1]; 0 is off."""
    typical_p: float = 1.0
    """Locally typical sampling (arXiv 2202.00666), in (0, 1]; 1 is off."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in the window (arXiv
    1909.05858); 1 is off.
    """
    repetition_window: int = 64
    """How many last tokens, prompt included, the three penalties look at; -1 all, 0 none."""
    frequency_penalty: float = 0.0
    """Subtracted once for each occurrence in the window, in [-2, 2]."""
    presence_penalty: float = 0.0
    """Subtracted once for each token that occurs in the window, in [-2, 2]."""
    dry_multiplier: float = 0.0
    """DRY: penalty for a token that would continue a repeated run; 0 is off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = -1
    """How many last tokens DRY searches; -1 all, 0 none."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    """Exclude Top Choices with this chance at each position; 0 is off."""
    xtc_threshold: float = 0.1
    """XTC removes all but the least likely of the tokens at or above this probability; over 0.5 it
    never acts.
    """
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to logits by token id, each in [-100, 100]; -100 bans a token."""
    seed: int | None = None
    """In [0, 2**64). The draw at a position is a function of (seed, position) alone. None: a fresh
    seed.
    """
    logprobs: int | None = None
    """None: none. n in [0, 20]: log probability of each token drawn and of the n likeliest."""
