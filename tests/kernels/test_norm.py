"""The processor's own norm gives what torch's does."""

from __future__ import annotations

import pytest
import torch

from hearth.kernels.norm import plain_rms_norm, processor_rms_norm
from hearth.kernels.table import RMS_NORM, pick


@pytest.mark.parametrize("shape", [(1, 64), (5, 7), (3, 4, 128), (2, 40_000)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_it_is_the_reference(shape: tuple[int, ...], scale: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * scale
    found = processor_rms_norm(x, 1e-6)
    torch.testing.assert_close(found, plain_rms_norm(x, 1e-6), atol=0.0, rtol=2e-6)
    assert found.data_ptr() != x.data_ptr()


def test_zeros_stay_zeros() -> None:
    assert not processor_rms_norm(torch.zeros(2, 8), 1e-6).any()


def test_a_row_does_not_depend_on_the_others() -> None:
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(4))
    together = processor_rms_norm(x, 1e-6)
    for row in range(len(x)):
        assert torch.equal(processor_rms_norm(x[row : row + 1], 1e-6)[0], together[row])


def test_processors_have_it_and_others_the_reference() -> None:
    assert pick(RMS_NORM, torch.device("cpu")) is processor_rms_norm
    assert pick(RMS_NORM, torch.device("mps")) is plain_rms_norm
