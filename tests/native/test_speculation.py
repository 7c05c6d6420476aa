"""Drafts change no token: full attention, windows and experts in exact mode, guide in both."""

from pathlib import Path
from typing import Any

import pytest

from driven import Driven
from guide_forms import derive
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native.load import open_model
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


@pytest.mark.parametrize("kind", KINDS)
def test_in_default_mode_packed_weights_say_the_same(kind: str, tmp_path: Path) -> None:
    """Products of quantized weights have the same bits for 1 to 47 rows, and so does attention."""
    settings = ModelSettings(context=128, threads=1, batch_threads=1)
    path = derive("Q8_0", tmp_path)
    loaded = open_model(ModelSpec(str(path), settings=settings))
    assert_drafts_change_nothing(Driven(loaded.runner), kind)
    loaded.runner.close()
