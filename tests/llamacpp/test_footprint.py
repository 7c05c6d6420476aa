"""The planned memory of a worker: pools that grow, static ones, and mapped files."""

from __future__ import annotations

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings
from hearth.backends.llamacpp.footprint import (
    is_mapped,
    memory_of,
    needed_bytes,
    plan_for,
    pool_cells,
)
from hearth.backends.llamacpp.params import START_CELLS
from hearth.quant.gguf import preflight


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_llama(
        tmp_path_factory.mktemp("model") / "tiny.gguf", layers=1, hidden=128, context=32_768
    )


@pytest.fixture(scope="module")
def header(path):
    return preflight.check(path)


def test_a_pool_doubles_until_it_holds_what_is_asked_for(header):
    plan = plan_for(header, ModelSettings(max_sessions=1))
    assert pool_cells(plan, 1) == (START_CELLS, 0)
    assert pool_cells(plan, START_CELLS) == (START_CELLS, 0)
    assert pool_cells(plan, START_CELLS + 1) == (2 * START_CELLS, START_CELLS)
    assert pool_cells(plan, 32_768) == (32_768, 16_384)
    assert pool_cells(plan, 1 << 30) == (32_768, 16_384)


def test_a_pool_never_grows_past_what_was_planned(header):
    plan = plan_for(header, ModelSettings(max_sessions=1, context=10_000))
    assert pool_cells(plan, 10_000) == (10_240, START_CELLS)
    plan = plan_for(header, ModelSettings(max_sessions=1, context=5000))
    assert pool_cells(plan, 1) == (5120, 0), "it is made at once"
    plan = plan_for(header, ModelSettings(max_sessions=1, context=30_000))
    assert pool_cells(plan, 9000) == (15_104, 8192), "half of the most comes before the most"
    assert pool_cells(plan, 30_000) == (30_208, 15_104)


def test_a_static_pool_is_there_at_once_and_for_all_sessions(header):
    grows = memory_of(header, plan_for(header, ModelSettings(context=8192, max_sessions=4)))
    plan = plan_for(header, ModelSettings(context=8192, max_sessions=4, kv_pool="static"))
    static = memory_of(header, plan)
    assert pool_cells(plan, 1) == (4 * 8192, 0)
    assert static.kv == 4 * grows.kv
    assert static.growing == 0 < grows.growing


def test_attention_without_flash_takes_more_scratch_memory(header):
    settings = ModelSettings(context=32_768, max_sessions=1)
    flash = memory_of(header, plan_for(header, settings))
    plain = memory_of(
        header, plan_for(header, ModelSettings(context=32_768, flash_attention=False))
    )
    assert plain.compute > flash.compute


def test_weights_are_mapped_where_they_take_more_than_half_of_what_is_free(header):
    weights = sum(tensor.nbytes for tensor in header.all_tensors)
    plan = plan_for(header, ModelSettings(context=512))
    assert memory_of(header, plan, available_bytes=weights).mapped
    assert not memory_of(header, plan, available_bytes=2 * weights).mapped
    assert is_mapped(6, 10) and not is_mapped(5, 10)


def test_no_less_is_set_aside_than_is_taken(path, header):
    settings = ModelSettings(context=32_768)
    plan = plan_for(header, settings)
    assert needed_bytes(path, settings) >= memory_of(header, plan).needed


@pytest.mark.parametrize(
    ("settings", "turns"),
    [
        (ModelSettings(), True),
        (ModelSettings(flash_attention=True), False),
        (ModelSettings(flash_attention=False), False),
        (ModelSettings(kv_type="q8_0"), False),
    ],
    ids=str,
)
def test_attention_changes_where_the_worker_chooses_it(header, settings, turns):
    assert (memory_of(header, plan_for(header, settings)).transposing > 0) is turns
