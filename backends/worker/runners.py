"""Opens a model with its runner. This is the only module that knows all runners; each is imported
when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.machine.threads import SPINS
from hearth.backends.worker.choice import choose


def open_model(spec: ModelSpec, cache_dir: Path) -> Loaded:
    """Load the model of `spec` with the runner that it names, or that `choice.choose` selects.

    Args:
        cache_dir: where self-test results and measurements of this machine are kept.

    Raises:
        HearthError: the file is corrupt, not supported, too large, or the backend is not installed.
    """
    if choose(spec, cache_dir).runner == "native":
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # Read when PyTorch loads libgomp.
        from hearth.backends.native import load as native

        return native.open_model(spec)
    from hearth.backends.llamacpp import load as llamacpp

    return llamacpp.open_model(spec, cache_dir)
