"""Jobs that measure a tiny model in a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hearth.backends.bench.job import Job
from hearth.backends.contract.models import ModelSettings, ModelSpec

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)


@pytest.fixture
def job(tiny_model: Path, tmp_path: Path) -> Callable[..., Job]:
    """`job(tests=..., ...)`: few tokens, exact mode, one thread."""

    def make(**changes: object) -> Job:
        fields: dict[str, object] = {
            "spec": ModelSpec(str(tiny_model), "tiny", settings=EXACT),
            "cache_dir": str(tmp_path),
            "repeats": 2,
            "sessions": (1, 3),
            "prompt_tokens": 8,
            "gen_tokens": 4,
            "depth_tokens": 16,
            "session_prompt_tokens": 16,
            "session_gen_tokens": 2,
        }
        return Job(**{**fields, **changes})  # type: ignore[arg-type]

    return make
