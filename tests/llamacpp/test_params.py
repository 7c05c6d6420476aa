"""Settings that would make llama.cpp abort are refused by name; nothing is shortened silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import DoesNotFit, HearthError, InvalidParameter, UnsupportedParameter
from hearth.backends.llamacpp.lib import load_library, set_fields
from hearth.backends.llamacpp.load import Loaded, open_model
from hearth.backends.llamacpp.params import (
    ContextPlan,
    check_settings,
    gpu_layers,
    larger_pool,
    plan_context,
)
from hearth.backends.llamacpp.recurrent import state_bytes

Load = Callable[..., Loaded]
GIB = 1 << 30


class Header:
    """The values of a GGUF header; 1 KiB of KV per token."""

    architecture = "llama"

    def __init__(
        self, trained: int = 32768, head: int = 64, kv_bytes: int = 1024, **values: int
    ) -> None:
        self.context_length = trained
        self._kv_bytes = kv_bytes
        self._values = {"llama.attention.key_length": head, "llama.attention.value_length": head}
        self._values |= {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}

    def value(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        return self._kv_bytes


def recurrent_header(**changes: int) -> Header:
    """2 layers with 1 MiB of state each, and no cost per token."""
    sizes = {"block_count": 2, "ssm__state_size": 128, "ssm__inner_size": 2048}
    return Header(head=0, kv_bytes=0, **(sizes | changes))


def planned(
    header: Header | None = None, *, available_bytes: int = 8 * GIB, **settings: Any
) -> ContextPlan:
    """The plan for a model with 1 GiB of weights."""
    header = header or Header()
    wanted = ModelSettings(**settings)
    return plan_context(wanted, header, weight_bytes=GIB, available_bytes=available_bytes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", 0),
        ("context", -1),
        ("context", 1 << 30),
        ("context", 2.5),
        ("threads", 0),
        ("threads", 513),
        ("batch_threads", 0),
        ("gpu_layers", -1),
        ("max_batch_tokens", 0),
        ("max_batch_tokens", 1 << 20),
        ("max_sessions", 0),
        ("max_sessions", 257),
        ("max_waiting", -1),
        ("kv_budget_bytes", 0),
        ("kv_pool", "shrink"),
        ("memory_fraction", 0.0),
        ("memory_fraction", 1.01),
        ("memory_fraction", float("nan")),
        ("target_itl_ms", 0),
        ("target_itl_ms", float("inf")),
        ("target_itl_ms", float("nan")),
        ("kv_type", "q5_0"),
    ],
)
def test_a_bad_setting_is_refused_by_name(f32_model: Path, name: str, value: object) -> None:
    settings = ModelSettings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter) as caught:
        open_model(ModelSpec(str(f32_model), settings=settings))
    assert caught.value.param == name


def test_quantized_values_need_flash_attention() -> None:
    for types in ({"kv_type": "q8_0"}, {"kv_type_v": "q8_0"}):
        with pytest.raises(InvalidParameter) as caught:
            check_settings(ModelSettings(flash_attention=False, **types), 256)  # type: ignore[arg-type]
        assert caught.value.param == "flash_attention"
    check_settings(ModelSettings(kv_type="q8_0", kv_type_v="f16", flash_attention=False), 256)


def test_what_only_the_native_runner_keeps_is_refused() -> None:
    with pytest.raises(UnsupportedParameter, match="q8_0, not as fp8") as caught:
        check_settings(ModelSettings(kv_type_v="fp8"), 256)
    assert caught.value.param == "kv_type_v"


def test_a_quantized_cache_needs_heads_of_whole_blocks(f32_model: Path) -> None:
    with pytest.raises(InvalidParameter) as caught:
        open_model(ModelSpec(str(f32_model), settings=ModelSettings(kv_type="q8_0")))
    assert caught.value.param == "kv_type"
    assert "16" in caught.value.message


@pytest.mark.parametrize(
    ("kv_type", "kv_type_v", "flash"),
    [
        ("q8_0", None, None),
        ("q4_0", None, None),
        ("f16", None, None),
        ("q8_0", "f16", False),
        ("f16", "q8_0", None),
    ],
)
def test_a_quantized_cache_works_where_heads_allow_it(
    load: Load, models: Path, kv_type: str, kv_type_v: str | None, flash: bool | None
) -> None:
    path = tiny_llama(models / "wide.gguf", hidden=128)
    loaded = load(path, kv_type=kv_type, kv_type_v=kv_type_v, flash_attention=flash)
    assert loaded.info.kv_type == (f"{kv_type}/{kv_type_v}" if kv_type_v else kv_type)
    bits = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
    token = loaded.runner.info.kv_bytes_per_token
    plain = load(path, kv_type="f16", flash_attention=None).runner.info.kv_bytes_per_token
    assert token / plain == (bits[kv_type] + bits[kv_type_v or kv_type]) / 32


def test_more_sessions_than_max_batch_tokens_is_no_assertion(load: Load, f32_model: Path) -> None:
    loaded = load(f32_model, max_batch_tokens=2, max_sessions=8)
    assert loaded.runner.info.max_batch_tokens == 2
    assert loaded.runner.info.max_sequences == 8


def test_gpu_layers_need_a_gpu() -> None:
    with pytest.raises(InvalidParameter):
        gpu_layers(ModelSettings(gpu_layers=4), supports_gpu=False)
    assert gpu_layers(ModelSettings(), supports_gpu=False) == 0
    assert gpu_layers(ModelSettings(), supports_gpu=True) == -1


def test_context_is_what_the_model_was_trained_for_where_it_fits() -> None:
    plan = planned()
    assert plan.context == 32768
    assert plan.pool_tokens == 8 * 32768
    assert plan.kept_tokens == plan.pool_tokens // 2
    assert plan.first_tokens == 4096
    assert plan.notices == ()


def test_a_context_cut_to_what_fits_is_said() -> None:
    plan = planned(Header(1 << 20), available_bytes=2 * GIB)
    assert plan.context < 1 << 20
    assert plan.context == plan.pool_tokens
    assert plan.context * 1024 * 1.5 + GIB < 2 * GIB
    assert f"{plan.context:,}" in plan.notices[0]


def test_an_asked_context_beyond_memory_does_not_fit() -> None:
    with pytest.raises(DoesNotFit) as caught:
        planned(available_bytes=3 * GIB, context=4_000_000)
    data = caught.value.data
    assert isinstance(data["needed_bytes"], int) and isinstance(data["available_bytes"], int)
    assert data["needed_bytes"] > data["available_bytes"]
    assert f"--ctx {data['fitting_context']}" in caught.value.hint


def test_weights_beyond_memory_do_not_fit() -> None:
    with pytest.raises(DoesNotFit):
        planned(available_bytes=GIB // 2)


def test_a_context_beyond_training_is_honoured_and_said() -> None:
    plan = planned(context=40000)
    assert plan.context == 40000
    assert "32,768" in plan.notices[0]


def test_a_budget_bounds_pool_and_context() -> None:
    plan = planned(kv_budget_bytes=1200 * 1024 + 5)
    assert plan.pool_tokens == plan.context == 768, "whole blocks, which llama.cpp cannot round up"
    assert "KV budget" in plan.notices[0]


def test_a_budget_for_less_than_one_block_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match=r"262,144 bytes.*262,143 bytes"):
        planned(kv_budget_bytes=256 * 1024 - 1)


def test_a_context_beyond_the_budget_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match=r"2,000 tokens.*1,048,576 bytes") as caught:
        planned(context=2000, kv_budget_bytes=1024 * 1024)
    assert caught.value.data["needed_bytes"] == 2048 * 1024


def test_the_budget_that_an_error_names_is_enough() -> None:
    plan = planned(context=2000, kv_budget_bytes=2048 * 1024)
    assert (plan.context, plan.pool_tokens) == (2000, 2048)


def test_a_pool_that_grows_leaves_the_budget_for_its_copy_and_for_texts() -> None:
    budget = 96_000 * 1024
    plan = planned(Header(1 << 20), kv_budget_bytes=budget)
    cells = plan.first_tokens
    assert cells < plan.pool_tokens == budget // (2 * 1024) // 256 * 256, "its mask takes as much"
    assert plan.text_tokens == (budget - plan.pool_tokens * 1024) // 2048 // 256 * 256
    while cells < plan.pool_tokens:
        larger = larger_pool(cells, cells + 1, plan.pool_tokens)
        assert 1.5 * cells <= larger and (larger + cells) * 1024 <= budget
        cells = larger
    assert cells == plan.pool_tokens


def test_a_context_that_fits_without_a_copy_alone_is_taken_at_once() -> None:
    plan = planned(Header(1 << 20), context=90_000, kv_budget_bytes=96_000 * 1024)
    assert plan.context == 90_000 and plan.first_tokens == plan.pool_tokens == 96_000
    assert plan.text_tokens is None


def test_a_static_pool_is_taken_at_once_and_may_be_larger() -> None:
    grows, static = (
        planned(Header(1 << 20), available_bytes=2 * GIB, kv_pool=kind)
        for kind in ("grow", "static")
    )
    assert static.first_tokens == static.pool_tokens > 1.4 * grows.pool_tokens
    assert grows.first_tokens == 4096


def test_a_smaller_fraction_of_memory_leaves_a_smaller_pool() -> None:
    def pool(fraction: float) -> int:
        plan = planned(Header(1 << 20), available_bytes=4 * GIB, memory_fraction=fraction)
        return plan.pool_tokens

    assert pool(0.5) < pool(1.0)
    assert GIB + pool(0.5) * 1024 * 1.5 <= 2 * GIB


def test_there_are_ids_for_kept_prefixes_and_a_batch_for_each_id() -> None:
    for sessions in (1, 8, 250, 256):
        plan = planned(max_sessions=sessions, max_batch_tokens=1)
        assert plan.slots == sessions
        assert plan.slots <= plan.sequences <= 256
        assert plan.batch >= plan.sequences
        assert plan.max_outputs >= max(plan.sequences, 32)


def test_recurrent_states_are_few_and_counted() -> None:
    header = recurrent_header()
    plan = planned(header)
    assert plan.sequences == 16
    assert (plan.state_bytes, plan.kv_bytes_per_token) == (2 << 20, 0)
    assert plan.first_tokens == plan.pool_tokens == 8 * 32768
    needed = GIB + (256 << 20) + 16 * 2 * (1 << 20)
    planned(header, available_bytes=needed, memory_fraction=1.0)
    with pytest.raises(DoesNotFit):
        planned(header, available_bytes=needed - 1, memory_fraction=1.0)


def test_a_budget_counts_recurrent_states() -> None:
    plan = planned(recurrent_header(), kv_budget_bytes=40 << 20)
    assert plan.sequences == 10
    with pytest.raises(DoesNotFit):
        planned(recurrent_header(), kv_budget_bytes=15 << 20)


@pytest.mark.parametrize(
    ("values", "elements"),
    [
        ({"shortconv__l_cache": 3, "embedding_length": 64}, 64 * 2),
        ({"wkv__head_size": 8, "embedding_length": 64}, 64 * 2 + 64 * 8),
        (
            {
                "ssm__conv_kernel": 4,
                "ssm__inner_size": 128,
                "ssm__group_count": 2,
                "ssm__state_size": 16,
            },
            3 * (128 + 2 * 2 * 16) + 16 * 128,
        ),
        (
            {"kda__head_dim": 8, "ssm__conv_kernel": 4, "attention__head_count": 4},
            3 * 3 * 8 * 4 + 8 * 8 * 4,
        ),
    ],
    ids=["LFM2", "RWKV", "Mamba", "Kimi"],
)
def test_states_have_the_sizes_that_llama_cpp_gives_them(
    values: dict[str, int], elements: int
) -> None:
    assert state_bytes(Header(block_count=5, **values)) == 5 * elements * 4


def test_unknown_struct_fields_are_refused() -> None:
    params = load_library().api.llama_model_default_params()
    with pytest.raises(HearthError, match="use_mlock"):
        set_fields(params, use_mlock=True)


@pytest.mark.parametrize(
    ("name", "value"), [("threads", "two"), ("context", True), ("max_sessions", 2.5)]
)
def test_a_setting_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    settings = replace(ModelSettings(), **{name: value})
    with pytest.raises(InvalidParameter, match=f"{name} is {value!r}"):
        check_settings(settings, 8)
