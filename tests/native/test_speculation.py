"""Drafts change no token, in exact mode: full attention, windows and experts."""

from pathlib import Path
from typing import Any

import pytest

from hearth.backends.contract.models import ModelSettings
from native_runners import runner_of
from oracles import KINDS, assert_drafts_change_nothing
from tiny_checkpoints import WINDOW, tiny_checkpoint

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama2", {}),
    "window": ("mistral", {"sliding_window": WINDOW}),
    "window over experts": ("mixtral", {"sliding_window": WINDOW}),
    "window below full attention": ("gemma3", {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_drafts_change_nothing_that_is_said(name: str, kind: str, tmp_path: Path) -> None:
    family, changes = MODELS[name]
    folder = tiny_checkpoint(family, tmp_path, **changes)
    settings = ModelSettings(context=128, threads=1, batch_threads=1, deterministic=True)
    assert_drafts_change_nothing(runner_of(folder, settings), kind)
