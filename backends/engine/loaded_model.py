"""What a runner's package gives for a model that it opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hearth.backends.contract.loaded import ModelInfo
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
