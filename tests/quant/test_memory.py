"""The memory calculator: its sums, and its scratch buffers compared with those that llama.cpp
reports.
"""

from __future__ import annotations

import logging
import os
import re
from array import array
from dataclasses import replace

import pytest

from gguf_builder import tiny_llama
from hearth.app.machine import this_machine
from hearth.quant.families.config import LayerConfig, ModelConfig
from hearth.quant.gguf import preflight
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.values import NumberArray
from hearth.quant.memory import (
    RUNTIME_BASE_BYTES,
    Pool,
    estimated_use,
    memory_use,
    vocabulary_bytes,
)
from hearth.quant.memory_graph import Graph, compute_bytes
from hearth.quant.memory_sessions import Sizing, packing_bytes, precision_bits
from hearth.quant.memory_shape import (
    ModelShape,
    guessed_shape,
    shape_given,
    shape_of,
    shape_of_config,
)
from hearth.quant.memory_weights import (
    Weights,
    read_bytes_per_token,
    repacked_types,
    weights_of,
)
from model_shapes import SHAPES, Shape
from random_models import write_model

QWEN3_0_6B = ModelShape(28, 1024, 16, 8, 224, 128, 128, 3072, 151_936, 151_387)
LLAMA_1B = ModelShape(16, 2048, 32, 8, 128, 64, 64, 8192, 128_256, 280_147)
POOL = Pool(8192, 4096, 8192, "f16", "f16", sequences=40, tokens=512)
FEW = NumberArray(ValueType.BOOL, array("b", [1, 1, 1, 1, 0, 1, 1, 1]))
SMALL = Shape("llama", 2, 256, 4, 2, 64, 768, 32_768, 1e4)
BUFFERS = {
    "small": SMALL,
    "wide": replace(SMALL, width=768, heads=12, kv_heads=4, feed_forward=2048),
    "many heads": replace(SMALL, heads=8, kv_heads=8, head_length=128),
    "long rows": replace(SMALL, feed_forward=2048),
    "many tokens": replace(SMALL, tokens=20_000, tied=True),
    "qwen3": replace(SMALL, architecture="qwen3", head_norms=True),
    "sliding window": SHAPES["tiny-swa"],
    "hybrid": SHAPES["tiny-hybrid"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def opened(path, *, no_alloc):
    """The functions of llama.cpp, and the model of `path`, optionally without its weights."""
    lib = pytest.importorskip("hearth.backends.llamacpp.lib")
    api = lib.load_library().api
    params = api.llama_model_default_params()
    lib.set_fields(params, n_gpu_layers=0, load_mode=api.LLAMA_LOAD_MODE_NONE, no_alloc=no_alloc)
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    assert model
    return api, model


def reported(caplog, what):
    """The last size in bytes that llama.cpp logged for `what`."""
    found = re.findall(rf"{what} buffer size = +([\d.]+) MiB", caplog.text)
    return float(found[-1]) * (1 << 20) if found else 0.0


@pytest.mark.parametrize("name", BUFFERS)
def test_scratch_memory_is_what_llama_cpp_reserves(name, folder, caplog):
    caplog.set_level(logging.DEBUG, "hearth.backends.llamacpp.lib")
    path = write_model(BUFFERS[name], "f16", folder / f"{name}.gguf")
    shape = shape_of(preflight.check(path))
    lib = pytest.importorskip("hearth.backends.llamacpp.lib")
    api, model = opened(path, no_alloc=True)
    try:
        for graph in (
            Graph(tokens=512, cells=4096, sequences=40, outputs=40, flash=True),
            Graph(tokens=512, cells=16_384, sequences=1, outputs=1, flash=True),
            Graph(tokens=128, cells=8192, sequences=24, outputs=32, flash=False),
        ):
            params = api.llama_context_default_params()
            lib.set_fields(
                params,
                n_ctx=graph.cells,
                n_batch=512,
                n_ubatch=graph.tokens,
                n_seq_max=graph.sequences,
                n_outputs_max=graph.outputs,
                flash_attn_type=int(graph.flash),
                kv_unified=True,
                swa_full=True,
            )
            context = api.llama_init_from_model(model, params)
            api.llama_free(context)
            there = reported(caplog, "compute")
            assert compute_bytes(shape, graph) == pytest.approx(there, rel=0.06, abs=600 << 10)
    finally:
        api.llama_model_free(model)


def test_an_embedding_that_is_the_output_too_is_held_twice_where_it_is_repacked(folder, caplog):
    caplog.set_level(logging.DEBUG, "hearth.backends.llamacpp.lib")
    path = tiny_llama(folder / "tied.gguf", hidden=256, vocab=1024, quant="Q4_0")
    header = preflight.check(path)
    api, model = opened(path, no_alloc=False)
    api.llama_model_free(model)
    there = reported(caplog, "CPU model") + reported(caplog, "CPU_REPACK model")
    types = repacked_types(this_machine().cpu_flags)
    if not reported(caplog, "CPU_REPACK model"):
        pytest.skip("llama.cpp repacks nothing here")
    weights = weights_of(header, types, mapped=False)
    assert weights.held + weights.copied == pytest.approx(there, rel=0.01, abs=20 << 10)


def test_what_is_repacked_depends_on_the_processor():
    assert repacked_types(()) == frozenset()
    assert TensorType.Q4_K in repacked_types(("avx2", "fma"))
    assert TensorType.Q2_K not in repacked_types(("avx2",))
    assert TensorType.Q2_K in repacked_types(("avx2", "avx512f"))
    assert TensorType.Q8_0 in repacked_types(("asimd", "asimddp"))


def test_a_mapped_file_is_there_beside_what_was_repacked_of_it(folder):
    header = preflight.check(tiny_llama(folder / "q4.gguf", hidden=256, quant="Q4_0"))
    types = frozenset({TensorType.Q4_0})
    read = weights_of(header, types, mapped=False)
    mapped = weights_of(header, types, mapped=True)
    assert read.held == read.tensor_bytes < mapped.held == header.size_bytes
    assert mapped.copied == mapped.repacked_bytes > read.copied
    assert weights_of(header, frozenset(), mapped=True).copied == 0


@pytest.mark.parametrize(
    ("arch", "extra", "heads", "has_values"),
    [
        ("llama", {}, 16, True),
        ("llama", {"attention.key_length_mla": 16}, 16, False),
        ("llama", {"full_attention_interval": 4}, 4, True),
        ("llama", {"full_attention_interval": 4, "attention.recurrent_layers": FEW}, 2, True),
        ("qwen3next", {}, 4, True),
        ("qwen35", {"nextn_predict_layers": 1}, 2, True),
    ],
)
def test_keys_and_values_are_those_of_the_header(folder, arch, extra, heads, has_values):
    plain = preflight.check(
        tiny_llama(folder / "kv.gguf", hidden=128, heads=4, kv_heads=2, layers=8)
    )
    metadata = {key.replace("llama.", f"{arch}."): of for key, of in plain.metadata.items()}
    metadata |= {"general.architecture": arch} | {f"{arch}.{key}": of for key, of in extra.items()}
    header = replace(plain, metadata=metadata)
    shape = shape_of(header)
    for kind in ("f32", "f16", "q8_0", "q4_0"):
        assert shape.kv_bytes_per_token(kind, kind) == header.kv_bytes_per_token(kind, kind)
    assert header.kv_bytes_per_token() == heads * 32 * 2 * (1 + has_values)
    with pytest.raises(KeyError):
        shape.kv_bytes_per_token("f17", "f16")


def test_latent_attention_keeps_no_values_and_interleaved_recurrence_no_keys(folder):
    latent = tiny_llama(folder / "mla.gguf", extra={"llama.attention.key_length_mla": 16})
    assert shape_of(preflight.check(latent)).value_length == 0
    hybrid = tiny_llama(folder / "gdn.gguf", layers=8, extra={"llama.full_attention_interval": 4})
    shape = shape_of(preflight.check(hybrid))
    assert shape.kv_heads_in_all == 2 * shape.kv_heads
    named = {}
    for path in (latent, hybrid):
        header = preflight.check(path)
        sizing = replace(LLAMA_2_7B, shape=shape_of(header))
        named[path] = sizing.outside()
    assert "MLA" in named[latent][0] and "6 of 8 layers" in named[hybrid][0]
    assert not LLAMA_2_7B.outside()


def test_experts_widen_a_graph_and_are_read_in_part(folder):
    extra = {
        "llama.expert_count": 8,
        "llama.expert_used_count": 2,
        "llama.expert_feed_forward_length": 512,
        "llama.expert_shared_count": 1,
    }
    dense = read_header(tiny_llama(folder / "dense.gguf"))
    header = read_header(tiny_llama(folder / "experts.gguf", extra=extra))
    assert shape_of(header).feed_forward == 3 * 512
    assert shape_of(dense).dense and not shape_of(header).dense
    assert read_bytes_per_token(header) == read_bytes_per_token(dense)


GIB = 1 << 30


def sizing(layers, heads, kv_heads, parameters, precision="fp16", **changes):
    """A model with heads of 128, for 4,096 tokens in f16 and 24 GiB."""
    shape = shape_given(
        parameters=parameters, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=128
    )
    found = Sizing(shape, round(parameters), 0, "", 4096, 1, "f16", 24 * GIB)
    return replace(found.in_precision(precision), **changes)


LLAMA_2_7B = sizing(32, 32, 32, 6.74e9)
LLAMA_2_13B = sizing(40, 40, 40, 13.02e9)
LLAMA_2_70B = sizing(80, 64, 8, 68.98e9)


@pytest.mark.parametrize(
    ("model", "cache_gib", "mha_gib"),
    [
        (LLAMA_2_7B, 2.0, 2.0),
        (LLAMA_2_13B, 3.125, 3.125),
        (LLAMA_2_70B, 1.25, 10.0),
        (replace(LLAMA_2_70B, tokens=128_000), 39.0625, 312.5),
        (replace(LLAMA_2_7B, sessions=3), 6.0, 2.0),
    ],
)
def test_the_kv_cache_by_the_formula(model, cache_gib, mha_gib):
    assert model.kv_bytes == cache_gib * GIB
    mha, grouped, mqa = model.variants()
    assert (mha.kind, mha.kv_bytes) == ("MHA", mha_gib * GIB)
    assert mha.kv_bytes > grouped.kv_bytes > mqa.kv_bytes == mha.kv_bytes // model.shape.heads
    assert [one.is_own for one in model.variants()].count(True) == 1


@pytest.mark.parametrize(
    ("model", "fp16", "int4"), [(LLAMA_2_7B, 5, 10), (LLAMA_2_13B, 0, 5), (LLAMA_2_70B, 0, 0)]
)
def test_sessions_on_24_gib_before_scratch_memory(model, fp16, int4):
    assert model.sessions_before_scratch == fp16
    small = model.in_precision("int4")
    assert small.weight_bytes == model.weight_bytes // 4
    assert small.sessions_before_scratch == int4
    most = small.sessions_that_fit
    assert most <= int4
    if most:
        assert replace(small, sessions=most).total <= small.memory_bytes
    assert replace(small, sessions=most + 1).total > small.memory_bytes
    decimal = replace(small, memory_bytes=24 * 10**9)
    assert decimal.sessions_before_scratch <= int4


def test_tokens_a_second_are_limited_by_what_a_step_reads():
    one, many = LLAMA_2_7B, replace(LLAMA_2_7B, sessions=4)
    rate = one.weight_bytes + one.session_bytes
    assert one.tok_per_s(rate) == pytest.approx(1.0)
    assert 1.0 < many.tok_per_s(rate) < 4.0
    experts = replace(many, read_bytes=many.weight_bytes // 8)
    assert experts.tok_per_s(rate) > many.tok_per_s(rate)
    dense = replace(experts, shape=replace(many.shape, dense=True))
    read = dense.read_bytes + dense.kv_bytes
    assert dense.tok_per_s(rate) == pytest.approx(4 * rate / read), "an embedding is not read"
    assert replace(one, weight_bytes=0).tok_per_s(rate) is None


def test_precisions_are_those_of_people_and_of_blocks():
    assert [precision_bits(name) for name in ("FP16", "int4", "q4_k", "Q8_0")] == [16, 4, 4.5, 8.5]
    for wrong in ("i32", "q4_k_m", "half"):
        with pytest.raises(KeyError):
            precision_bits(wrong)


def test_dimensions_that_are_missing_or_contradict_each_other_are_named():
    assert shape_given(parameters=8e9) == guessed_shape(8e9)
    by_width = shape_given(layers=2, heads=4, hidden=512)
    assert (by_width.kv_heads, by_width.key_length) == (4, 128)
    for given, name in (
        ({"layers": 2}, "heads"),
        ({"heads": 2, "head_dim": 64}, "layers"),
        ({"layers": 2, "heads": 4, "kv_heads": 3, "head_dim": 64}, "share"),
    ):
        with pytest.raises(ValueError, match=name):
            shape_given(**given)


def test_a_shape_from_a_config_is_that_of_the_header(folder):
    header = preflight.check(tiny_llama(folder / "both.gguf", hidden=128, heads=4, kv_heads=2))
    shape = shape_of(header)
    config = ModelConfig(
        family="llama",
        vocab_size=shape.vocabulary,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.key_length,
        feed_forward=shape.feed_forward,
        layers=(LayerConfig(None),) * shape.layers,
        context=512,
        norm_eps=1e-5,
        tied=False,
    )
    same = replace(shape, merges=0, tokenizer="gpt2")
    assert shape_of_config(config) == same


def test_packing_takes_a_few_chunks_a_thread():
    assert packing_bytes(1) < packing_bytes(8) < packing_bytes(1) + (80 << 20)


def test_the_parts_are_summed_and_a_copy_counts_where_it_is_more_than_scratch_memory():
    weights = Weights(400 << 20, 401 << 20)
    still = memory_use(QWEN3_0_6B, weights, replace(POOL, copied_cells=0))
    grown = memory_use(QWEN3_0_6B, weights, POOL)
    assert still.total == still.held == still.needed
    assert grown.growing == 4096 * 28 * 8 * 128 * 2 * 2
    assert grown.total - still.total == grown.growing - grown.compute
    assert still.base == RUNTIME_BASE_BYTES
    assert still.weights == weights.tensor_bytes
    parts = (still.weights, still.kv, still.compute, still.outputs, still.vocabulary, still.base)
    assert sum(parts) == still.total


def test_only_what_is_used_of_a_pool_takes_scratch_memory():
    weights = Weights(400 << 20, 401 << 20)
    full = memory_use(QWEN3_0_6B, weights, POOL)
    empty = memory_use(QWEN3_0_6B, weights, replace(POOL, used_cells=2048))
    assert full.kv == empty.kv
    assert full.compute - empty.compute == 6144 * 2 * 520  # 512 tokens, in whole 40ths.


def test_of_a_mapped_file_what_was_copied_need_not_stay():
    weights = Weights(400 << 20, 401 << 20, repacked_bytes=300 << 20, mapped=True)
    use = memory_use(QWEN3_0_6B, weights, POOL)
    assert use.mapped
    assert use.total - use.needed == 300 << 20


@pytest.mark.parametrize(("shape", "parameters"), [(QWEN3_0_6B, 0.6e9), (LLAMA_1B, 1.24e9)])
def test_an_estimate_says_how_far_off_it_may_be(shape, parameters):
    size = int(parameters * 0.6)
    exact = memory_use(shape, Weights(size, size), POOL)
    estimate = estimated_use(size, guessed_shape(parameters), POOL)
    assert abs(exact.total - estimate.total) <= estimate.uncertain
    assert exact.uncertain == 0
    told = estimated_use(size, shape, POOL, knows_kv=True)
    assert told.total == exact.total and 0 < told.uncertain < estimate.uncertain


def test_larger_models_are_guessed_larger():
    guesses = [guessed_shape(parameters * 1e9) for parameters in (0.5, 2, 4, 8, 14, 32, 70)]
    sizes = [guess.width * guess.layers for guess in guesses]
    assert sizes == sorted(sizes) and len(set(sizes)) == len(sizes)


def test_vocabularies_cost_by_their_kind():
    plain = replace(QWEN3_0_6B, tokenizer="llama", merges=0)
    assert 0 < vocabulary_bytes(plain) < vocabulary_bytes(QWEN3_0_6B)
    unknown = replace(QWEN3_0_6B, tokenizer="new")
    assert vocabulary_bytes(unknown) == vocabulary_bytes(QWEN3_0_6B)


def test_a_change_of_attention_takes_what_the_pool_holds_twice_and_its_values_once_more():
    weights = Weights(400 << 20, 401 << 20)
    stays = memory_use(QWEN3_0_6B, weights, POOL)
    turns = memory_use(QWEN3_0_6B, weights, replace(POOL, may_transpose=True))
    assert (stays.transposing, stays.most) == (0, stays.total)
    assert turns.transposing == 8192 * 224 * 128 * 2 * 2
    assert turns.total == stays.total and turns.most == turns.held + turns.transposing
