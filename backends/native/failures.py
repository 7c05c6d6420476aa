"""Converts PyTorch's errors to those of a runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hearth.backends.engine.runner import RunnerLost
from hearth.backends.errors import Busy, InternalError


@contextmanager
def torch_failures() -> Iterator[None]:
    """Convert the errors that PyTorch raises in the block.

    Raises:
        Busy: the device is out of memory; nothing was computed.
        RunnerLost: the device failed; no later call to it from this process succeeds.
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
