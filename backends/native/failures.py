"""Errors of PyTorch as those of a runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hearth.backends.engine.runner import RunnerLost
from hearth.backends.errors import Busy, InternalError


@contextmanager
def torch_failures() -> Iterator[None]:
    """What PyTorch raises inside is raised as:

    Raises:
        Busy: the device has no memory; nothing was computed.
        RunnerLost: the device failed, after which no call of this process to it succeeds.
        InternalError: anything else.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise Busy(
            "The device has no memory for this.",
            "Try again when another request is done.",
            retry_after_s=1.0,
        ) from error
    except torch.AcceleratorError as error:
        raise RunnerLost(f"the device failed: {error}") from error
    except RuntimeError as error:
        raise InternalError(f"PyTorch failed: {error}") from error
