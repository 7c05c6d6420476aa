"""Errors of making a GGUF file, apart from a damaged source."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class CannotQuantize(HearthError):
    """The source cannot be converted as requested; `tensor` in `data` names the tensor at fault, if
    any.
    """

    code = "cannot_quantize"
    http_status = 422


class BadRecipe(HearthError):
    """The recipe is invalid: an unknown type, or a pattern that is not a regular expression."""

    code = "bad_recipe"
    exit_code = 2
    http_status = 400


class NeedsImportanceMatrix(CannotQuantize):
    """With that few bits, the model is usable only if an importance matrix is used."""

    code = "needs_importance_matrix"


class GgmlUnavailable(HearthError):
    """The library that packs the weights is not installed or does not load."""

    code = "ggml_unavailable"
    http_status = 503


class TargetExists(HearthError):
    """The target path already exists."""

    code = "target_exists"


class NoSpace(HearthError):
    """The disk has less free space than the result needs; both numbers are in `data`."""

    code = "no_space"
    exit_code = 4
    http_status = 507


class BeingWritten(HearthError):
    """Another process is writing the same file."""

    code = "being_written"
    http_status = 409
