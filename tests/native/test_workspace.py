"""A step takes as much memory as the plan reserves for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native import page_kernels
from hearth.backends.native.plan import plan_memory
from hearth.backends.native.workspace import _BASE_BYTES, Workspace
from native_runners import llama_8b, runner_of
from peak_memory import Peak
from tiny_checkpoints import tiny_checkpoint

CONTEXT = 1024


@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "gemma3", "mixtral", "gpt_oss"])
@pytest.mark.parametrize("step", ["prompt", "rest of a prompt", "single tokens"])
def test_a_step_takes_no_more_than_the_plan_says(
    kind: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step == "rest of a prompt":  # The plan is for runners that gather keys and values.
        monkeypatch.setattr(page_kernels, "cpu_library", lambda: None)
    folder = tiny_checkpoint(kind, tmp_path, max_position_embeddings=CONTEXT)
    sessions = 4 if step == "single tokens" else 1
    settings = ModelSettings(
        context=CONTEXT, max_sessions=sessions, max_batch_tokens=256, kv_type="f16"
    )
    runner = runner_of(folder, settings)
    config = runner.decoder.config
    text = [5 + at % 200 for at in range(CONTEXT - 300)]
    try:
        for slot in range(sessions):
            assert runner.cache.reserve(slot, CONTEXT)
            for at in range(0, len(text) if step != "prompt" else 0, 256):
                part = text[at : at + 256]
                runner.step(StepPlan((Row(slot, at, part, 0),)))
        held = 0 if step == "prompt" else len(text)
        count = 1 if step == "single tokens" else 256
        rows = tuple(Row(slot, held, text[:count], 1) for slot in range(sessions))
        with Peak() as peak:
            runner.step(StepPlan(rows))
    finally:
        runner.close()
    said = Workspace(config, settings).bytes(sessions * CONTEXT)
    said -= _BASE_BYTES
    assert peak.most <= said
    if step == "rest of a prompt":
        assert said < 2 * peak.most


def test_a_large_step_takes_more_than_a_quarter_of_a_gigabyte() -> None:
    """For 2,048 tokens, with the shapes of Llama 3.1 8B."""
    config = llama_8b()

    def taken(**settings: Any) -> int:
        wanted = ModelSettings(max_sessions=1, **settings)
        return Workspace(config, wanted).bytes(wanted.context or 131_072)

    large = taken(max_batch_tokens=2048, context=8192)
    assert 512 << 20 < large < 1 << 30
    assert taken(max_batch_tokens=64, context=1024) < 160 << 20
    assert taken(max_batch_tokens=2048) > 2 << 30, "masks and widened keys of all 131,072"
    plans = [
        plan_memory(
            ModelSettings(max_sessions=1, max_batch_tokens=tokens),
            config,
            device=torch.device("cpu"),
            dtype=torch.bfloat16,
            compute_dtype=torch.bfloat16,
            weight_bytes=16 << 30,
            available_bytes=22 << 30,
        )
        for tokens in (64, 2048)
    ]
    assert plans[0].context > plans[1].context > 0
    for plan in plans:
        settings = ModelSettings(max_sessions=1, max_batch_tokens=plan.max_batch_tokens)
        step = Workspace(config, settings).bytes(plan.pool_tokens)
        pool = plan.pool_tokens * plan.kv_bytes_per_token
        free = int((22 << 30) * settings.memory_fraction) - (16 << 30)
        assert 0.99 * free < step + pool <= free
