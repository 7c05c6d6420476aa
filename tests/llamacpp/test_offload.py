"""Layers on GPUs are planned by the memory of the GPUs. No test here has a GPU: the library reports
a simulated one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import Busy, DoesNotFit
from hearth.backends.llamacpp import load as loading
from hearth.backends.llamacpp import offload as offloading
from hearth.backends.llamacpp.lib import Library, load_library
from hearth.backends.llamacpp.load import Loaded, open_model
from hearth.backends.llamacpp.offload import (
    CPU,
    GPU,
    INTEGRATED_GPU,
    DeviceMemory,
    Offload,
    device_memory,
    devices_of,
    offload_of,
)
from hearth.backends.llamacpp.params import ContextPlan, plan_context
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile

GIB = 1 << 30
TOKEN_BYTES = 1024


class Header:
    """A model with 1 KiB of keys and values per token."""

    architecture = "llama"
    context_length = 1 << 20

    def value(self, key: str, default: Any = None) -> Any:
        return 64 if key.endswith("_length") else default

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        return TOKEN_BYTES


def planned(offload: Offload | None, host_gib: float, **settings: Any) -> ContextPlan:
    """The plan of a model with 1 GiB of weights."""
    return plan_context(
        ModelSettings(memory_fraction=1.0, **settings),
        Header(),
        weight_bytes=GIB,
        available_bytes=int(host_gib * GIB),
        offload=offload,
    )


def offloaded(free_gib: float, share: float = 1.0, host_share: float | None = None) -> Offload:
    """`share` of the model on GPUs, `host_share` on the host; None: the rest of it."""
    host = 1 - share if host_share is None else host_share
    return Offload(int(free_gib * GIB), int(share * GIB), int(host * GIB), share, host)


def test_a_pool_on_a_card_is_sized_by_what_is_free_there() -> None:
    small, large = planned(offloaded(1.5), 64), planned(offloaded(3), 64)
    assert small.pool_tokens == GIB // 4 // TOKEN_BYTES
    assert large.pool_tokens == 7 * small.pool_tokens
    assert small.context == small.pool_tokens and "fits in memory" in small.notices[0]


def test_and_not_by_the_memory_of_the_machine() -> None:
    static = planned(offloaded(3), 0.5, kv_pool="static")
    assert static.pool_tokens == 7 * GIB // 4 // TOKEN_BYTES
    with pytest.raises(DoesNotFit):
        planned(None, 0.5, kv_pool="static")


def test_a_pool_that_grows_is_copied_to_the_machine() -> None:
    plan = planned(offloaded(64), 0.5)
    assert plan.pool_tokens == GIB // 4 // (TOKEN_BYTES // 2)
    assert plan.host_kv_bytes_per_token == 0 < plan.kv_bytes_per_token


def test_with_some_layers_on_a_card_both_memories_count() -> None:
    half = offloaded(2, share=0.5)
    plan = planned(half, 64, kv_pool="static")
    assert plan.pool_tokens == 5 * GIB // 4 // (TOKEN_BYTES // 2)
    assert plan.host_kv_bytes_per_token == TOKEN_BYTES // 2
    plan = planned(half, 1, kv_pool="static")
    assert plan.pool_tokens == GIB // 4 // (TOKEN_BYTES // 2)


def test_memory_that_is_shared_has_to_hold_all_of_it() -> None:
    shared = offloaded(64, share=1.0, host_share=1.0)
    assert planned(shared, 4) == planned(None, 4)
    shared = offloaded(2, share=1.0, host_share=1.0)
    assert planned(shared, 64).pool_tokens == 3 * GIB // 4 // TOKEN_BYTES


def test_what_does_not_fit_into_a_card_says_so_with_both_numbers() -> None:
    with pytest.raises(DoesNotFit, match="of the GPU's memory") as caught:
        planned(offloaded(1.5), 64, context=1 << 20)
    assert caught.value.data["available_bytes"] == 3 * GIB // 2
    assert caught.value.data["needed_bytes"] == GIB + (256 << 20) + GIB
    assert "--gpu-layers" in caught.value.hint
    with pytest.raises(DoesNotFit, match="of the GPU's memory"):
        planned(offloaded(0.5), 64)
    with pytest.raises(DoesNotFit) as caught:
        planned(offloaded(64, share=0.5), 0.5)
    assert "GPU" not in caught.value.message


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """Four layers."""
    folder = tmp_path_factory.mktemp("offload")
    return preflight.check(tiny_llama(folder / "four.gguf", layers=4))


CARD = DeviceMemory(GIB, is_shared=False)


def bytes_of(header: GgufFile, *beginnings: str) -> int:
    return sum(t.nbytes for t in header.all_tensors if t.name.startswith(beginnings))


def test_the_output_goes_first_then_the_last_layers_and_the_embedding_never(
    header: GgufFile,
) -> None:
    total = bytes_of(header, "")
    embedding = bytes_of(header, "token_embd.")
    output = bytes_of(header, "output.", "output_norm.")
    assert bytes_of(header, "output.") > 0, "this model's output matrix is its own"
    one = offload_of(header, 1, CARD)
    assert (one.weight_bytes, one.kv_share) == (output, 0.0)
    three = offload_of(header, 3, CARD)
    assert three.weight_bytes == output + bytes_of(header, "blk.2.", "blk.3.")
    assert (three.kv_share, three.host_kv_share) == (0.5, 0.5)
    for layers in (-1, 5, 99):
        every = offload_of(header, layers, CARD)
        assert every.weight_bytes == total - embedding
        assert (every.host_weight_bytes, every.kv_share, every.host_kv_share) == (embedding, 1, 0)


def test_a_tied_embedding_is_in_both_memories(header: GgufFile) -> None:
    tied = SimpleNamespace(
        architecture=header.architecture,
        integer=header.integer,
        all_tensors=[t for t in header.all_tensors if t.name != "output.weight"],
    )
    own, both = offload_of(header, -1, CARD), offload_of(tied, -1, CARD)  # type: ignore[arg-type]
    embedding = bytes_of(header, "token_embd.")
    assert both.host_weight_bytes == embedding
    assert both.weight_bytes == own.weight_bytes - bytes_of(header, "output.") + embedding


def test_where_memory_is_shared_all_weights_are_in_that_of_the_machine(header: GgufFile) -> None:
    found = offload_of(header, -1, DeviceMemory(GIB, is_shared=True))
    assert (found.host_weight_bytes, found.host_kv_share) == (bytes_of(header, ""), 1.0)
    assert found.kv_share == 1.0


def library_with(*devices: tuple[int, int]) -> Library:
    """A library whose ggml knows these devices: (type, free bytes)."""

    def memory(device: ctypes.c_void_p, free: Any, total: Any) -> None:
        assert device.value is not None
        free._obj.value = devices[device.value - 7][1]

    def kind(device: ctypes.c_void_p) -> int:
        assert device.value is not None
        return devices[device.value - 7][0]

    functions = SimpleNamespace(
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda index: 7 + index,
        ggml_backend_dev_type=kind,
        ggml_backend_dev_memory=memory,
    )
    return SimpleNamespace(api=SimpleNamespace(_lib=functions))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([(CPU, 8 * GIB)], None),
        ([(GPU, GIB), (CPU, 8 * GIB)], DeviceMemory(GIB, is_shared=False)),
        ([(GPU, GIB), (GPU, 2 * GIB), (CPU, 8)], DeviceMemory(3 * GIB, is_shared=False)),
        ([(GPU, GIB), (INTEGRATED_GPU, 4 * GIB)], DeviceMemory(GIB, is_shared=False)),
        ([(INTEGRATED_GPU, 4 * GIB), (CPU, 8)], DeviceMemory(4 * GIB, is_shared=True)),
        ([(GPU, 0), (CPU, 8 * GIB)], None),
    ],
    ids=["none", "one", "two", "one beside an integrated one", "integrated", "says nothing"],
)
def test_the_memory_of_the_gpus_that_are_used(
    devices: list[tuple[int, int]], expected: DeviceMemory | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offloading.sys, "platform", "linux")
    assert device_memory(library_with(*devices)) == expected


def test_apples_gpus_share_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading.sys, "platform", "darwin")
    assert device_memory(library_with((GPU, GIB))) == DeviceMemory(GIB, is_shared=True)


def test_a_library_without_these_functions_has_no_known_devices() -> None:
    assert devices_of(None) == devices_of(SimpleNamespace()) == []


def test_the_real_library_knows_the_processor_and_its_memory() -> None:
    library = load_library()
    free = [free for kind, free in devices_of(library.api._lib) if kind == CPU]
    assert free and min(free) > 0
    if not library.supports_gpu:
        assert device_memory(library) is None


def test_a_model_is_opened_with_the_memory_of_the_card(
    f32_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = offload_of(preflight.check(f32_model), -1, CARD).weight_bytes
    cell = 2 * 2 * 2 * 16 * 4
    free = (256 << 20) + weights + 300 * cell
    monkeypatch.setattr(loading, "gpu_layers", lambda settings, supports_gpu: -1)
    monkeypatch.setattr(loading, "device_memory", lambda library: DeviceMemory(free, False))
    exact = ModelSettings(kv_type="f32", threads=1, batch_threads=1, memory_fraction=1.0)
    loaded = open_model(ModelSpec(str(f32_model), settings=exact))
    try:
        assert loaded.runner.info.pool_tokens == loaded.info.context == 256
    finally:
        loaded.runner.close()


def test_growing_asks_the_machine_only_for_what_it_holds_itself(
    load: Callable[..., Loaded], long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load(long_model).runner.store
    monkeypatch.setattr("hearth.backends.llamacpp.store.available_bytes", lambda: 1 << 20)
    with pytest.raises(Busy):
        store.make_room(8192)
    monkeypatch.setattr(store, "_plan", loading.replace(store._plan, host_kv_bytes_per_token=0))
    store.make_room(8192)
    assert store.allocated_tokens == 8192
