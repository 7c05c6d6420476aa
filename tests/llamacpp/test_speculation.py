"""Drafts change no token, in exact mode."""

from pathlib import Path

import pytest

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.llamacpp.load import open_model
from oracles import KINDS, assert_drafts_change_nothing

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_nothing_that_is_said(f32_model: Path, tmp_path: Path, kind: str) -> None:
    loaded = open_model(ModelSpec(str(f32_model), settings=EXACT), tmp_path)
    assert_drafts_change_nothing(Driven(loaded.runner), kind)
    loaded.runner.close()
