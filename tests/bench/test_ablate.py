"""Each means that is switched off is really off, and changes no answer where nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gguf_builder import tiny_llama
from hearth.backends.bench.ablate import ablate
from hearth.backends.bench.job import Ablated, Job, Setup, Skipped
from hearth.backends.contract.models import BackendName, ModelSpec
from hearth.backends.errors import InvalidParameter


def ablated(job: Job) -> tuple[dict[str, Ablated], dict[str, str]]:
    """What was measured, and why the rest was not."""
    messages = list(ablate(job))
    assert any(isinstance(one, Setup) for one in messages)
    found = {one.off: one for one in messages if isinstance(one, Ablated)}
    return found, {one.test: one.reason for one in messages if isinstance(one, Skipped)}


@pytest.mark.parametrize("backend", ["native", "llamacpp"])
def test_each_is_off_and_answers_stay(
    job: Callable[..., Job], tmp_path: Path, backend: BackendName
) -> None:
    threads = torch.get_num_threads()
    path = tiny_llama(tmp_path / "packed.gguf", quant="Q8_0")
    is_native = backend == "native"
    settings = job().spec.settings
    if is_native:
        settings = replace(settings, dtype="f32")
    spec = ModelSpec(str(path), "tiny", backend, settings)
    found, skipped = ablated(job(spec=spec, sessions=(2,), session_gen_tokens=4, ablate=True))
    torch.set_num_threads(threads)
    # Three requests of 16 tokens, the last two with 14 of the first, and four new ones each.
    computed = {"nothing": 29, "KV cache": 3 * (16 + 17 + 18 + 19), "prefix reuse": 3 * 19}
    by = dict.fromkeys(computed, "C, Q8_0" if is_native else "llama.cpp, Q8_0")
    if is_native:
        computed |= {"fused calls": 29, "quantization": 29}
        by |= {"fused calls": "PyTorch, Q8_0", "quantization": "PyTorch, f32"}
    assert {off: one.computed_tokens for off, one in found.items()} == computed
    assert {off: one.computed_by for off, one in found.items()} == by
    assert set(skipped) == (set() if is_native else {"fused calls", "quantization"})
    for one in found.values():
        assert one.tokens == one.same_tokens == 12
        samples = (one.ttft_s, one.shared_ttft_s, one.tpot_s, one.tok_per_s)
        assert all(len(some) == 2 and min(some) > 0 for some in samples)


def test_what_is_not_there_cannot_be_switched_off(
    job: Callable[..., Job], tiny_model: Path
) -> None:
    spec = ModelSpec(str(tiny_model), "tiny", "native", job().spec.settings)
    _, skipped = ablated(job(spec=spec, sessions=(1,), session_gen_tokens=2, repeats=1))
    assert set(skipped) == {"fused calls", "quantization"}
    with pytest.raises(InvalidParameter, match="one number of sessions"):
        ablated(job(sessions=(1, 2)))
    with pytest.raises(InvalidParameter, match="context"):
        ablated(job(sessions=(1,), session_prompt_tokens=600))
