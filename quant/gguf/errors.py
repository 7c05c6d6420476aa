"""What can go wrong when a GGUF file is made, apart from a damaged source."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class CannotQuantize(HearthError):
    """This source cannot be made into what was asked; `tensor` in `data` names the culprit where
    there is one.
    """

    code = "cannot_quantize"
    http_status = 422


class BadRecipe(HearthError):
    """The recipe is not one: an unknown type, or a pattern that is no regular expression."""

    code = "bad_recipe"
    exit_code = 2
    http_status = 400


class NeedsImportanceMatrix(CannotQuantize):
    """So few bits make no usable model unless an importance matrix says which weights matter."""

    code = "needs_importance_matrix"


class GgmlUnavailable(HearthError):
    """The library that packs the weights is not installed or does not load."""

    code = "ggml_unavailable"
    http_status = 503


class TargetExists(HearthError):
    """There is a file where the result should go."""

    code = "target_exists"


class NoSpace(HearthError):
    """The disk has less room than the result needs; both numbers are in `data`."""

    code = "no_space"
    exit_code = 4
    http_status = 507


class BeingWritten(HearthError):
    """Another process is writing the same file."""

    code = "being_written"
    http_status = 409
