"""What a model needs, said before it is loaded: the same that the loaded model is planned with."""

import os
import shutil
from dataclasses import replace

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.llamacpp.footprint import needed_bytes
from hearth.backends.llamacpp.params import CELL_ALIGNMENT, plan_context
from hearth.backends.worker import footprint
from hearth.backends.worker.footprint import Footprints
from hearth.quant.gguf import preflight

SETTINGS = [
    ModelSettings(),
    ModelSettings(context=2048),
    ModelSettings(kv_type="f32", max_sessions=3),
    ModelSettings(flash_attention=False),
    ModelSettings(kv_pool="static", max_sessions=2),
    ModelSettings(kv_budget_bytes=1 << 20),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=8192)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_with_what_it_needs_it_is_planned_in_full_and_with_less_it_is_not(path, settings):
    settings = replace(settings, memory_fraction=1.0)
    header = preflight.check(path)
    weight_bytes = sum(tensor.nbytes for tensor in header.all_tensors)

    def planned(available_bytes):
        plan = plan_context(
            settings, header, weight_bytes=weight_bytes, available_bytes=available_bytes
        )
        return plan.pool_tokens if settings.kv_pool == "static" else plan.context

    needed = needed_bytes(path, settings)
    assert planned(needed + 1) == planned(1 << 50)
    less = replace(settings, context=None)
    full = plan_context(less, header, weight_bytes=weight_bytes, available_bytes=1 << 50)
    shrunk = plan_context(
        less,
        header,
        weight_bytes=weight_bytes,
        available_bytes=needed - CELL_ALIGNMENT * full.kv_bytes_per_token,
    )
    assert shrunk.pool_tokens < full.pool_tokens


def test_what_cannot_be_read_or_takes_nothing_here_needs_no_room(path, tmp_path):
    footprints = Footprints()
    assert footprints.of(ModelSpec(str(tmp_path / "nothing.gguf"))) is None
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:5000])
    assert footprints.of(ModelSpec(str(broken))) is None
    assert footprints.of(ModelSpec(str(path), settings=ModelSettings(context=-1))) is None
    assert footprints.of(ModelSpec(str(path), backend="remote")) is None


def test_a_file_is_read_again_only_when_it_changed_or_is_loaded_otherwise(
    path, tmp_path, monkeypatch
):
    reads = []
    check = preflight.check
    monkeypatch.setattr(preflight, "check", lambda path: reads.append(path) or check(path))
    own = tmp_path / "own.gguf"
    own.write_bytes(path.read_bytes())
    spec = ModelSpec(str(own), backend="llamacpp")
    footprints = Footprints()
    first = footprints.of(spec)
    stays = replace(spec, settings=ModelSettings(keep_alive_s=-1.0, max_waiting=1))
    assert footprints.of(stays) == first and len(reads) == 1
    assert footprints.of(replace(spec, settings=ModelSettings(context=64))) < first
    assert len(reads) == 2
    os.utime(own, ns=(1, 1))
    footprints.of(spec)
    assert len(reads) == 3


def test_a_draft_model_is_counted(path, tmp_path):
    draft = tiny_llama(tmp_path / "draft.gguf", context=8192)
    alone = ModelSpec(str(path), backend="llamacpp", settings=ModelSettings(context=512))
    both = replace(alone, settings=replace(alone.settings, draft=str(draft)))
    footprints = Footprints()
    own = footprints.of(replace(alone, path=str(draft)))
    assert footprints.of(both) == footprints.of(alone) + own
    missing = replace(both.settings, draft=str(tmp_path / "nothing.gguf"))
    assert footprints.of(replace(both, settings=missing)) == footprints.of(alone)


def test_only_so_many_files_are_remembered_those_that_were_asked_for_last(
    path, tmp_path, monkeypatch
):
    monkeypatch.setattr(footprint, "MOST_KNOWN", 3)
    read = []
    monkeypatch.setattr(
        footprint, "_needed_bytes", lambda _, spec, *__: read.append(spec.path) or 1
    )
    specs = [ModelSpec(str(tmp_path / f"{number}.gguf")) for number in range(5)]
    for spec in specs:
        shutil.copy(path, spec.path)
    footprints = Footprints()
    for number in (0, 1, 2, 0, 3, 0, 4, 0, 3, 1):
        assert footprints.of(specs[number]) == 1
    assert read == [specs[number].path for number in (0, 1, 2, 3, 4, 1)]
