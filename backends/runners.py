"""Which runner opens a model. The only place that knows all runners; each is imported when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hearth.backends.choice import choose
from hearth.backends.contract import ModelInfo, ModelSpec
from hearth.backends.engine.runner import Runner
from hearth.backends.text.chat_templates import ChatTemplates
from hearth.backends.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run. `runner.close()` frees all of it, the tokenizer included."""

    runner: Runner
    tokenizer: Tokenizer
    info: ModelInfo
    templates: ChatTemplates
    """The one of the settings, else the model's own; empty if it cannot chat."""
    settle: Callable[[], object] = lambda: None
    """Waits for work on the model that goes on beside its first steps, for those who measure."""


def open_model(spec: ModelSpec, cache_dir: Path) -> Loaded:
    """Load the model of `spec` with the runner that it names, or that suits (`choice.choose`).

    Args:
        cache_dir: where verdicts and measurements about this machine are kept.

    Raises:
        HearthError: the file is corrupt, not supported, too large, or the backend is not installed.
    """
    if choose(spec, cache_dir).runner == "native":
        from hearth.backends.native import load as native

        return native.open_model(spec)
    from hearth.backends.llamacpp import load as llamacpp

    return llamacpp.open_model(spec, cache_dir)
