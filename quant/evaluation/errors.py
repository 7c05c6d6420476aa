"""What can go wrong when a model is judged."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class TextTooShort(HearthError):
    """The text has too few tokens to say anything about a model."""

    code = "text_too_short"
    exit_code = 2
    http_status = 422


class BadLogits(HearthError):
    """The model computed what is no number."""

    code = "bad_logits"


class NotComparable(HearthError):
    """Two models do not have the same tokens, so that their logits say nothing of each other."""

    code = "not_comparable"
    exit_code = 2
    http_status = 422
