"""Which runner opens a model. The only place that knows all runners; each is imported when it is
asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.machine.threads import SPINS
from hearth.backends.worker.choice import choose


def open_model(spec: ModelSpec, cache_dir: Path) -> Loaded:
    """Load the model of `spec` with the runner that it names, or that suits (`choice.choose`).

    Args:
        cache_dir: where verdicts and measurements about this machine are kept.

    Raises:
        HearthError: the file is corrupt, not supported, too large, or the backend is not installed.
    """
    if choose(spec, cache_dir).runner == "native":
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # Read when PyTorch loads libgomp.
        from hearth.backends.native import load as native

        return native.open_model(spec)
    from hearth.backends.llamacpp import load as llamacpp

    return llamacpp.open_model(spec, cache_dir)
