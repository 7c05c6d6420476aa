"""Which runner opens a model. The only place that knows all runners; each is imported when it is
asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hearth.backends.contract import ModelInfo, ModelSpec
from hearth.backends.engine.runner import Runner
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run. `runner.close()` frees all of it, the tokenizer included."""

    runner: Runner
    tokenizer: Tokenizer
    info: ModelInfo
    template: str | None
    """Jinja source: the one of the settings, else the model's own; None if it cannot chat."""


def open_model(spec: ModelSpec, cache_dir: Path) -> Loaded:
    """Load the model of `spec`.

    Args:
        cache_dir: where verdicts and measurements about this machine are kept.

    Raises:
        HearthError: the file is corrupt, not supported, too large, or the backend is not installed.
    """
    if spec.backend == "llamacpp":
        from hearth.backends.llamacpp import load

        return load.open_model(spec, cache_dir)
    raise InvalidParameter(
        "backend", f"There is no backend called {spec.backend!r}.", "Use llamacpp."
    )
