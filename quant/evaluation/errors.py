"""Errors of evaluating a model."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class TextTooShort(HearthError):
    """The text has too few tokens to evaluate a model."""

    code = "text_too_short"
    exit_code = 2
    http_status = 422


class BadLogits(HearthError):
    """The model computed logits that are not finite numbers."""

    code = "bad_logits"


class NotComparable(HearthError):
    """Two models do not have the same tokens, so their logits cannot be compared."""

    code = "not_comparable"
    exit_code = 2
    http_status = 422
