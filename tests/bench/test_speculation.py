"""What drafts bring is counted right: a model that is its own draft is always right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gguf_builder import tiny_llama
from hearth.assets import guide
from hearth.backends.bench.job import Job, Setup, Skipped, Speculated
from hearth.backends.bench.speculation import speculate
from hearth.backends.contract.models import BackendName, ModelSpec
from hearth.backends.contract.sampling import Speculate
from hearth.backends.errors import InvalidParameter


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        *(("native", "draft"), ("native", "ngram"), ("native", "medusa")),
        *(("llamacpp", "draft"), ("llamacpp", "ngram")),
    ],
)
def test_what_was_right_and_the_speed_up_next_to_the_formula(
    job: Callable[..., Job], tmp_path: Path, backend: BackendName, mode: Speculate
) -> None:
    threads = torch.get_num_threads()
    path = tiny_llama(tmp_path / "tiny.gguf", quant="Q8_0", context=2048)
    if mode == "medusa":
        path = Path(guide.__file__).parent / "guide.f16.gguf"  # Its heads are next to it.
    settings = replace(job().spec.settings, draft_tokens=3, context=None, speculate=mode)
    if mode == "draft":
        settings = replace(settings, draft=str(path))
    spec = ModelSpec(str(path), "tiny", backend, settings)
    asked = job(spec=spec, sessions=(1, 2), gen_tokens=16, speculate=(mode, "auto"), repeats=2)
    messages = list(speculate(asked))
    torch.set_num_threads(threads)
    assert any(isinstance(one, Setup) for one in messages)
    assert not any(isinstance(one, Skipped) for one in messages)
    found = [one for one in messages if isinstance(one, Speculated)]
    assert [(one.sessions, one.mode) for one in found] == [
        *((1, mode), (1, "auto")),
        *((2, mode), (2, "auto")),
    ]
    for one in found:
        assert min(one.cost_ratio, one.predicted, one.predicted_cpu, *one.speed_up) > 0
        assert len(one.speed_up) == len(one.speed_up_cpu) == 2
        assert 1 <= one.tokens_a_step <= 4
        # In steps with and without drafts logits of llama.cpp may differ a little.
        assert one.same_tokens == one.tokens or backend == "llamacpp"
    if mode == "draft":
        assert found[0].accepted_tokens == found[0].drafted_tokens
        assert len(found[0].drafted_tokens) == 3 and found[0].draft_ratio > 0
        assert found[0].tokens_a_step == pytest.approx(4)
    else:
        assert (found[0].draft_ratio > 0) == (mode == "medusa")


@pytest.mark.parametrize(("sessions", "tokens"), [(1, 1), (3, 2)])
def test_tokens_are_counted_from_where_all_sessions_have_begun(
    job: Callable[..., Job], tmp_path: Path, sessions: int, tokens: int
) -> None:
    """The first ones have as many as are asked for before the last prompts are computed."""
    path = tiny_llama(tmp_path / "tiny.gguf", context=2048)
    settings = replace(job().spec.settings, draft_tokens=3, max_batch_tokens=128)
    spec = ModelSpec(str(path), "tiny", settings=settings)
    asked = job(spec=spec, sessions=(sessions,), gen_tokens=tokens, speculate=("ngram",), repeats=1)
    (found,) = (one for one in speculate(asked) if isinstance(one, Speculated))
    assert found.tokens_a_step >= 1 and found.tokens >= sessions * tokens


def test_a_context_that_is_too_small_is_refused(job: Callable[..., Job]) -> None:
    asked = job(speculate=("ngram",))
    small = replace(asked.spec, settings=replace(asked.spec.settings, context=64))
    with pytest.raises(InvalidParameter, match="--ctx is 64"):
        list(speculate(replace(asked, spec=small)))
