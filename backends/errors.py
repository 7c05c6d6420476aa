"""The error tree of requests, models and workers: declared once, with exit code and HTTP status.

Errors cross process boundaries as `ErrorInfo`; `to_info` and `from_info` translate.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel

# Only the re-exported names; the classes declared below need no entry.
__all__ = ["CorruptFile", "HearthError", "UnsupportedModel"]


class InvalidParameter(HearthError):
    """A parameter has a value that cannot be honoured; `param` in `data` is its name."""

    code = "invalid_parameter"
    exit_code = 2
    http_status = 400

    def __init__(self, param: str, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message, hint, **{**data, "param": param})
        self.param = param


class UnsupportedParameter(InvalidParameter):
    """A parameter is known but cannot be honoured by this model or backend."""

    code = "unsupported_parameter"


class ConflictingParameters(InvalidParameter):
    """Two parameters that are each valid but cannot be combined."""

    code = "conflicting_parameters"


class LimitExceeded(InvalidParameter):
    """Each part of a parameter is valid, but there is too much of it: bytes, depth or items."""

    code = "limit_exceeded"


class UnknownToken(InvalidParameter):
    """A token id is not in the model's vocabulary."""

    code = "unknown_token"


class SettingsError(HearthError):
    """A settings file or an environment variable cannot be used."""

    code = "settings_error"
    exit_code = 2


class ModelNotFound(HearthError):
    """No model has that name, and none is stored at that path."""

    code = "model_not_found"
    exit_code = 3
    http_status = 404


class DoesNotFit(HearthError):
    """The model needs more memory for the requested context than there is; both numbers are in
    `data`.
    """

    code = "does_not_fit"
    exit_code = 4
    http_status = 507


class PromptTooLong(InvalidParameter):
    """A prompt or text exceeds the context; `prompt_tokens` and `context` are in `data`.

    Made by `prompt_too_long`.
    """

    code = "prompt_too_long"
    exit_code = 1

    def __init__(self, param: str, message: str, hint: str = "", **data: object) -> None:
        hint = hint or "Shorten the input, or raise the setting context (--ctx)."
        super().__init__(param, message, hint, **data)


def prompt_too_long(
    param: str,
    prompt_tokens: int,
    context: int,
    *,
    answers: bool = False,
    at_least: bool = False,
    hint: str = "",
) -> PromptTooLong:
    """The error for an input of more tokens than the context holds.

    Clients match on its wording: LiteLLM and OpenAI's on "This model's maximum context length is N
    tokens", Anthropic's on "prompt is too long: N tokens > M maximum".

    Args:
        param: "messages", "text" or "token_ids" of `Request`, or one item, such as "texts[3]".
        answers: one token of the context must be left for an answer.
        at_least: `prompt_tokens` is a lower bound, computed from the number of bytes.
    """
    name = "The prompt" if param in ("messages", "text", "token_ids") else param
    bound = "at least " if at_least else ""
    return PromptTooLong(
        param,
        f"{name} is too long: {bound}{prompt_tokens} tokens > {context - answers} maximum."
        f" This model's maximum context length is {context} tokens"
        f"{', of which the answer needs at least one' if answers else ''}.",
        hint,
        prompt_tokens=prompt_tokens,
        context=context,
    )


class NoChatTemplate(HearthError):
    """The model has no chat template, so it cannot chat."""

    code = "no_chat_template"
    http_status = 400


class TemplateError(HearthError):
    """The model's chat template failed, ran too long or produced too much."""

    code = "template_error"
    http_status = 422


class Busy(HearthError):
    """There is no room for the request now; `retry_after_s` in `data` is the time to wait before
    a retry.
    """

    code = "busy"
    http_status = 429


class WorkerDied(HearthError):
    """The process that ran the model died."""

    code = "worker_died"
    http_status = 503


class Interrupted(HearthError):
    """The call was ended from outside, for example by `hearth stop`."""

    code = "interrupted"
    http_status = 503


class BackendUnavailable(HearthError):
    """A backend's library is not installed or does not load."""

    code = "backend_unavailable"
    http_status = 503


class HostUnreachable(HearthError):
    """The host process could not be started or reached."""

    code = "host_unreachable"
    http_status = 503


class NoHost(HostUnreachable):
    """No host process is running, and the caller asked not to start one."""

    code = "no_host"


class InternalError(HearthError):
    """A defect in Hearth; the log has the traceback."""

    code = "internal_error"

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message, hint or "This is a defect in Hearth: please report it.", **data)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A `HearthError` in the form that is sent between processes; `from_info` turns it back."""

    code: str
    message: str
    hint: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@functools.cache
def _of_code(code: str) -> type[HearthError]:
    """The class of errors with `code`.

    Raises `KeyError` if there is none. A failure is not cached, because the module that declares
    the class may be imported later.
    """
    classes: dict[str, type[HearthError]] = {}
    pending: list[type[HearthError]] = [HearthError]
    while pending:
        cls = pending.pop()
        classes[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return classes[code]


def to_info(error: BaseException) -> ErrorInfo:
    """`error` in the form that is sent between processes; any error that is not a `HearthError`
    becomes `internal_error`.
    """
    if isinstance(error, HearthError):
        return ErrorInfo(error.code, error.message, error.hint, dict(error.data))
    return to_info(InternalError(f"{type(error).__name__}: {error}"))


def from_info(info: ErrorInfo) -> HearthError:
    """The typed error for `info`; an unknown code, from a newer peer, gives a `HearthError`."""
    try:
        cls = _of_code(info.code)
    except KeyError:
        cls = HearthError
    error = cls.__new__(cls)
    HearthError.__init__(error, info.message, info.hint, **info.data)
    if isinstance(error, InvalidParameter):
        error.param = str(info.data.get("param", ""))
    return error
