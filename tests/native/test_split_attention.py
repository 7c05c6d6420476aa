"""Single tokens are for the kernels for NVIDIA cards, which triton interprets here, and prompts for
what reads them otherwise: the logits are those of one way for all.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", minversion="3.9")

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row
from hearth.backends.native import kv_pool
from hearth.backends.native.models import layers, parts
from hearth.backends.native.split_attention import attend_decode
from native_runners import advance, runner_of
from tiny_checkpoints import VOCABULARY, tiny_checkpoint

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
SETTINGS = ModelSettings(kv_type="f32", context=128, max_sessions=4)


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3", "gpt_oss"])
def test_logits_are_those_of_attention_over_gathered_pages(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(family, tmp_path)
    calls: list[int] = []

    def counted(query, *arguments, **options):  # type: ignore[no-untyped-def]
        calls.append(len(query))
        return attend_decode(query, *arguments, **options)

    monkeypatch.setattr("hearth.backends.native.split_attention.attend_decode", counted)
    runners = []
    for triton in (True, False):
        runners.append(runner_of(tmp_path, SETTINGS, triton=triton))
    found, wanted = runners
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, 60).tolist()
    assert found.plan.splits_decode and not wanted.plan.splits_decode
    count = len(found.decoder.config.layers)
    for start, end in ((0, 30), (30, 31), (31, 32), (32, 44), (44, 45)):
        results = []
        for runner in (wanted, found):
            for module in (kv_pool, layers, parts):
                is_card = runner is found
                monkeypatch.setattr(
                    module, "has_triton", lambda device_type, is_card=is_card: is_card
                )
            others = []
            for slot, more in ((1, 1), (2, 3)):
                held = runner.cache.length(slot)
                assert runner.cache.reserve(slot, held + more)
                others.append(Row(slot, held, tokens[start : start + more], 0))
            results.append(advance(runner, 0, tokens[start:end], *others))
        np.testing.assert_allclose(
            results[1], results[0], rtol=1e-4, atol=1e-4 * float(np.abs(results[0]).max())
        )
    assert calls == count * [1] + 2 * count * [2] + count * [1] + count * [2]
    alone = [advance(runner, 0, [7]) for runner in (wanted, found)]
    np.testing.assert_allclose(*alone, rtol=1e-4, atol=1e-4 * float(np.abs(alone[0]).max()))
    assert calls[-count:] == count * [1]


def test_what_the_kernels_are_not_for(tmp_path: Path) -> None:
    """Deterministic and exact modes, and keys that are kept in other numbers than queries."""
    tiny_checkpoint("llama3", tmp_path)
    for changes in ({"deterministic": True}, {"flash_attention": False}, {"kv_type": "f16"}):
        settings = ModelSettings(**{"kv_type": "f32", "context": 128, **changes})
        assert not runner_of(tmp_path, settings, triton=True).plan.splits_decode
