"""The bounds of `ModelSettings` that hold for every runner; what one of them has besides, it checks
itself.
"""

from __future__ import annotations

from hearth.backends.contract.checks import check_number, typed
from hearth.backends.contract.fields import Field, numbers_of
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import InvalidParameter


def context_notices(
    settings: ModelSettings, context: int, trained: int, *, is_budget: bool
) -> tuple[str, ...]:
    """What a user should know of a context that was planned.

    Args:
        context: tokens that a sequence may have.
        trained: tokens that the model was trained for; 0: not known.
        is_budget: the KV budget is what limits the context.
    """
    notices = []
    if context < (settings.context or trained):
        reason = "what the KV budget holds" if is_budget else "what fits in memory"
        notices.append(
            f"Context is {context:,} tokens, {reason}; the model was trained for {trained:,}."
        )
    if settings.context is not None and 0 < trained < settings.context:
        notices.append(
            f"Context {settings.context:,} is beyond the {trained:,} tokens the model was "
            "trained for: expect poor answers past that."
        )
    return tuple(notices)


def check_settings(settings: ModelSettings, max_sequences: int) -> None:
    """Refuse values that no runner can take.

    Args:
        max_sequences: that the runner can run at the same time.

    Raises:
        InvalidParameter: with the name of the field and its bounds.
    """
    typed(settings)
    for field in (*numbers_of(ModelSettings), Field("max_sessions", "int", 1, max_sequences, "")):
        check_number(field, getattr(settings, field.name))
    both = (settings.threads, settings.batch_threads)
    if settings.deterministic and None not in both and len(set(both)) > 1:
        raise InvalidParameter(
            "batch_threads",
            f"threads is {both[0]} and batch_threads {both[1]}; with deterministic they are one.",
            "Set only threads (--threads).",
        )
