"""Configs of quantized checkpoints, and matrices read from their tensors: invalid ones are refused
by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from hearth.kernels.bits import as_bytes, pack_bits, unpack_bits
from hearth.quant.checkpoints import reading
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.groups import even_groups
from hearth.quant.checkpoints.patterns import matches
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import Checkpoint, QuantizedTensor
from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel
from hearth.quant.json_fields import Fields
from hearth.quant.safetensors import SafetensorsTensors
from hearth.quant.safetensors_header import read_header
from quantized_checkpoints import (
    Quantize,
    awq,
    awq_config,
    compressed_config,
    fp8,
    fp8_config,
    gptq,
    gptq_config,
    int8,
    int8_config,
    nf4,
    nf4_config,
    packed,
    packed_config,
    packed_words,
)

MODULE = "model.layers.0.mlp.down_proj"
SHAPE = (64, 96)
FLOAT = {"num_bits": 8, "type": "float"}


def checkpoint_of(model_type: str = "llama", **config: Any) -> Checkpoint | None:
    values = {"model_type": model_type, "quantization_config": config}
    return read_checkpoint(Fields(Path("none/config.json"), values))


def matrix(
    folder: Path,
    quantize: Quantize,
    config: dict[str, Any],
    change: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    shape: tuple[int, int] = SHAPE,
) -> tuple[Tensor, Tensor, QuantizedTensor]:
    """A matrix as read from its file, the expected matrix, and its description."""
    generator = torch.Generator().manual_seed(1)
    made = quantize(torch.randn(shape, generator=generator), generator)
    tensors = dict(made.tensors)
    change(tensors)
    named = {f"{MODULE}{leaf}": tensor.contiguous() for leaf, tensor in tensors.items()}
    save_file(named, folder / "x.safetensors")
    header = read_header(folder / "x.safetensors")
    file = SafetensorsTensors((header,), checkpoint_of(**config))
    (tensor,) = (one for one in file.stored.values() if isinstance(one, QuantizedTensor))
    part = read_quantized(tensor, file.read)
    held = sum(one.nbytes for one in part.tensors)
    assert abs(held - tensor.nbytes) <= 0.1 * held + 16 * shape[1], "what is set aside for it"
    return part.unpacked(torch.float32), made.plain, tensor


# Bits.


@given(bits=st.sampled_from([2, 3, 4, 6, 8]), rows=st.integers(1, 5), words=st.integers(1, 4))
def test_bits_come_out_as_they_went_in(bits: int, rows: int, words: int) -> None:
    generator = torch.Generator().manual_seed(rows + words)
    codes = torch.randint(0, 1 << bits, (rows, 32 * words), generator=generator)
    stored = packed_words(codes, bits)
    assert stored.shape == (rows, words * bits)
    codes = codes.to(torch.uint8)
    assert torch.equal(unpack_bits(as_bytes(stored), bits)[:, : 32 * words], codes)
    assert torch.equal(pack_bits(codes, bits)[:, : 4 * words * bits], as_bytes(stored))


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any),
    shuffle=st.booleans(),
)
def test_groups_become_even(lengths: list[int], shuffle: bool) -> None:
    """A group may have any multiple of eight inputs, including none."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths) * 8)
    if shuffle:
        order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
        numbers = numbers[order]
    groups = even_groups(numbers, len(lengths), "g_idx")
    scales = torch.rand(len(lengths), 3)
    spread = groups.spread(scales)
    by_input = spread.repeat_interleave(len(numbers) // spread.shape[1], 1)
    stored = numbers if groups.order is None else numbers[groups.order]
    assert torch.equal(by_input, scales.T[:, stored])


def test_groups_without_a_common_length_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="3 to 5 inputs"):
        even_groups(torch.tensor([0] * 5 + [1] * 3), 2, "a.g_idx")
    for numbers, wrong in (([0, 1, 2], 2), ([-1, 0, 1], -1)):
        with pytest.raises(CorruptFile, match=f"'a.g_idx' assigns an input to group {wrong} of 2"):
            even_groups(torch.tensor(numbers), 2, "a.g_idx")


# What configs say.


def test_labels() -> None:
    for config, label in (
        (gptq_config(3), "GPTQ 3-bit"),
        (awq_config(), "AWQ 4-bit"),
        (packed_config(4), "INT4"),
        (int8_config("tensor"), "INT8"),
        (fp8_config(), "FP8"),
        (nf4_config(), "NF4"),
    ):
        found = checkpoint_of(**config)
        assert found is not None and found.label == label
    assert checkpoint_of("gpt_oss", quant_method="mxfp4") is None
    assert read_checkpoint(Fields(Path("none/config.json"), {"model_type": "llama"})) is None


def test_a_config_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 64}')
    found = read_checkpoint(Fields(tmp_path / "config.json", {"model_type": "llama"}))
    assert found is not None and found.label == "GPTQ 4-bit"
    scheme = found.scheme_of(MODULE)
    assert scheme is not None and (scheme.group, scheme.zero_offset) == (64, 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "hqq"}, '"hqq"'),
        ({"quant_method": "exl3"}, '"exl3"'),
        ({"quant_method": "mxfp4"}, '"mxfp4"'),
        ({**gptq_config(), "bits": 5}, "bits' is 5"),
        ({**gptq_config(), "checkpoint_format": "marlin"}, '"marlin"'),
        ({**gptq_config(), "checkpoint_format": "gptq_p"}, '"gptq_p"'),
        ({**gptq_config(), "is_marlin_format": True}, "is_marlin_format"),
        ({**awq_config(), "version": "gemv"}, '"gemv"'),
        ({**awq_config(), "bits": 8}, "bits' is 8"),
        ({**awq_config(), "backend": "llm-awq"}, "llm-awq"),
        (compressed_config("nvfp4-pack-quantized", {}), '"nvfp4-pack-quantized"'),
        (compressed_config("marlin-24", {}), '"marlin-24"'),
        (compressed_config("pack-quantized", {"num_bits": 3}), "num_bits' is 3"),
        (compressed_config("pack-quantized", {"num_bits": 8, "type": "float"}), "type' is"),
        (compressed_config("int-quantized", {"num_bits": 4}), "num_bits' is 4"),
        (
            compressed_config("float-quantized", {**FLOAT, "strategy": "tensor_group"}),
            '"tensor_group"',
        ),
        (
            compressed_config(
                "float-quantized", {**FLOAT, "strategy": "block", "block_structure": [64, 64]}
            ),
            "[64, 64]",
        ),
        ({**packed_config(4), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        ({**packed_config(4), "transform_config": {"config_groups": {}}}, "transform_config"),
        ({**packed_config(4), "config_groups": {"NVFP4A16": ["Linear"]}}, "NVFP4A16"),
        ({**fp8_config(), "weight_block_size": [32, 32]}, "[32, 32]"),
        ({**fp8_config(), "fmt": "e5m2"}, '"e5m2"'),
        ({**fp8_config(), "expert_dtype": "fp4"}, '"fp4"'),
        ({**nf4_config(), "bnb_4bit_quant_type": "fp4"}, '"fp4"'),
        ({**nf4_config(), "bnb_4bit_quant_type": None}, "bnb_4bit_quant_type"),
        ({**nf4_config(), "load_in_8bit": True}, "load_in_8bit"),
    ],
)
def test_variants_that_cannot_be_read_are_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        checkpoint_of(**config)
    assert said in raised.value.message and raised.value.hint
    assert str(raised.value.data["field"]).startswith("quantization_config.")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**gptq_config(), "bits": None}, "bits"),
        ({**gptq_config(), "bits": "4"}, "bits"),
        ({**gptq_config(), "group_size": -2}, "group_size"),
        ({**gptq_config(), "group_size": 1 << 40}, "group_size"),
        ({**gptq_config(), "sym": "yes"}, "sym"),
        ({**gptq_config(), "dynamic": {"+:.*": 4}}, "dynamic.+:.*"),
        ({**gptq_config(), "dynamic": {"-:(": {}}}, "quantization_config"),
        ({**packed_config(4), "config_groups": {}}, "config_groups"),
        ({**packed_config(4), "config_groups": {"group_0": 1}}, "config_groups.group_0"),
        ({**packed_config(4), "config_groups": {"group_0": {}}}, "config_groups.group_0"),
        ({**packed_config(4), "ignore": ["re:("]}, "quantization_config"),
        (compressed_config("pack-quantized", {"num_bits": 4, "strategy": "group"}), "group_size"),
        ({**fp8_config(), "weight_block_size": [128]}, "weight_block_size"),
        ({**fp8_config(), "weight_block_size": [128, 0]}, "weight_block_size"),
        ({**fp8_config(), "weight_block_size": 128}, "weight_block_size"),
    ],
)
def test_values_that_cannot_be(config: dict[str, Any], field: str) -> None:
    with pytest.raises(CorruptFile) as raised:
        checkpoint_of(**config)
    assert field in str(raised.value.data["field"])


def test_groups_of_compressed_tensors() -> None:
    """Names take precedence over patterns, patterns over classes, as in its `match_targets`."""
    four, eight = (packed_config(bits)["config_groups"]["group_0"] for bits in (4, 8))
    groups = {
        "a": {**four, "targets": ["Linear"]},
        "b": {**eight, "targets": [r"re:.*down_proj", "model.embed_tokens"]},
        "c": {**four, "targets": [MODULE], "format": "pack-quantized"},
        "FP8_BLOCK": [r"re:.*\.experts\."],
    }
    config = {**packed_config(4), "config_groups": groups, "ignore": ["lm_head", "re:.*gate$"]}
    found = checkpoint_of(**config | {"format": "mixed-precision"})
    assert found is not None and found.label == "INT4+INT8+FP8"
    names = (
        *(MODULE, "model.layers.1.mlp.down_proj", "model.layers.1.mlp.up_proj"),
        *("model.embed_tokens", "lm_head", "model.layers.0.mlp.gate"),
        "model.layers.0.mlp.experts.3.up_proj",
    )
    schemes = [found.scheme_of(name) for name in names]
    kinds = [scheme and (scheme.layout, scheme.bits, scheme.block) for scheme in schemes]
    of_four, of_eight = ("packed", 4, None), ("packed", 8, None)
    assert kinds == [of_four, of_eight, of_four, of_eight, None, None, ("scaled", 8, (128, 128))]


def test_what_is_not_done_is_told() -> None:
    for config, said in (
        (fp8_config(), "activations in FP8"),
        (int8_config("channel"), "activations in INT8"),
        ({**packed_config(4), "kv_cache_scheme": {"num_bits": 8}}, "keys and values"),
    ):
        found = checkpoint_of(**config)
        assert found is not None and said in found.notices[0]
    found = checkpoint_of(**packed_config(4))
    assert found is not None and not found.notices


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
CONFIGS = (
    *(gptq_config() | {"dynamic": {}}, awq_config(), packed_config(4), int8_config("channel")),
    *(fp8_config(), nf4_config()),
)


@given(config=st.sampled_from(CONFIGS), data=st.data())
def test_any_value_is_understood_or_refused(config: dict[str, Any], data: st.DataObject) -> None:
    config = json.loads(json.dumps(config))
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(VALUES)
        break
    said = ""
    try:
        found = checkpoint_of(**config)
        if found is not None:
            said = f"{found.label} {found.scheme_of(MODULE)}"
    except HearthError as error:
        said = error.hint
    assert said


def test_some_modules_have_another_scheme() -> None:
    dynamic = {
        r"-:.*\.0\.mlp\.gate": {},
        r".*\.0\.mlp": {"bits": 8, "group_size": 64},
        r"+:model\.layers\.1\.": {"sym": False, "desc_act": True},
    }
    found = checkpoint_of(**gptq_config(), dynamic=dynamic)
    assert found is not None
    assert found.scheme_of("model.layers.0.mlp.gate_proj") is None
    eight = found.scheme_of(MODULE)
    assert eight is not None and (eight.bits, eight.group, eight.has_zeros) == (8, 64, False)
    assert eight.zero_offset == 1
    ordered = found.scheme_of("model.layers.1.mlp.down_proj")
    assert ordered is not None and ordered.is_ordered and ordered.has_zeros and ordered.group == 32
    usual = found.scheme_of("lm_head")
    assert usual is not None and (usual.bits, usual.is_ordered) == (4, False)


@pytest.mark.parametrize("pattern", ["(a+)+", r"(a)\1", ".*a.*b.*c.*d.*e", "a" * 501])
def test_patterns_that_may_take_very_long(pattern: str) -> None:
    with pytest.raises(UnsupportedModel, match="very long"):
        matches(pattern, "a")


def test_patterns_describe_the_beginning_of_a_name() -> None:
    assert matches(r"model\.layers\.(0|1)\.", MODULE)
    assert not matches("layers", MODULE)
    assert not matches(".*", "a" * 1000)


# Matrices.


def leave_out(leaf: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(leaf)


def put(leaf: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({leaf: change(tensors[leaf])})


DAMAGED: dict[str, tuple[Quantize, dict[str, Any], Callable[[dict[str, Tensor]], object], str]] = {
    "no scales": (gptq(), gptq_config(), leave_out(".scales"), "scales"),
    "no zeros": (awq(), awq_config(), leave_out(".qzeros"), "qzeros"),
    "scales of another group": (gptq(), gptq_config(4, 16), put(".g_idx", lambda x: x), "scales"),
    "scales cut off": (gptq(), gptq_config(), put(".scales", lambda x: x[:, :-1]), "scales"),
    "zeros of another shape": (gptq(), gptq_config(), put(".qzeros", lambda x: x.T), "qzeros"),
    "g_idx too short": (gptq(), gptq_config(), put(".g_idx", lambda x: x[1:]), "g_idx"),
    "g_idx too large": (gptq(), gptq_config(), put(".g_idx", lambda x: x + 1), "g_idx"),
    "g_idx below zero": (gptq(), gptq_config(), put(".g_idx", lambda x: x - 1), "g_idx"),
    "g_idx of floats": (gptq(), gptq_config(), put(".g_idx", lambda x: x.float()), "g_idx"),
    "uneven groups": (
        gptq(),
        gptq_config(),
        put(".g_idx", lambda x: torch.cat((x[:1], x[:-1]))),
        "g_idx",
    ),
    "no order": (gptq(order=True), gptq_config(order=True), leave_out(".g_idx"), "g_idx"),
    "no packed order": (
        packed(4, 32, order=True),
        packed_config(4, 32, order=True),
        leave_out(".weight_g_idx"),
        "weight_g_idx",
    ),
    "codes of bytes": (
        gptq(),
        gptq_config(),
        put(".qweight", lambda x: x.view(torch.uint8)),
        "qweight",
    ),
    "whole scales": (awq(), awq_config(), put(".scales", lambda x: x.to(torch.int32)), "scales"),
    "a line of codes": (gptq(), gptq_config(), put(".qweight", lambda x: x.flatten()), "qweight"),
    "no codes": (gptq(), gptq_config(), put(".qweight", lambda x: x[:0]), "qweight"),
    "inputs of three": (awq(), awq_config(), put(".qweight", lambda x: x[:3]), "qweight"),
    "other bits": (gptq(), gptq_config(8), put(".scales", lambda x: x), "scales"),
    "an absurd group": (gptq(), gptq_config(4, 1 << 20), put(".scales", lambda x: x), "scales"),
    "shape of another matrix": (
        packed(4, 32),
        packed_config(4, 32),
        put(".weight_shape", lambda x: x.flip(0)),
        "weight_packed",
    ),
    "an absurd shape": (
        packed(4, 32),
        packed_config(4, 32),
        put(".weight_shape", lambda x: x << 40),
        "weight_packed",
    ),
    "a long shape": (
        packed(4, 32),
        packed_config(4, 32),
        put(".weight_shape", lambda x: torch.ones(1000, dtype=torch.int64)),
        "weight_shape",
    ),
    "a shape of floats": (
        packed(4, 32),
        packed_config(4, 32),
        put(".weight_shape", lambda x: x.float()),
        "weight_shape",
    ),
    "no shape": (packed(4, 32), packed_config(4, 32), leave_out(".weight_shape"), "weight_shape"),
    "packed scales cut off": (
        packed(4, 32),
        packed_config(4, 32),
        put(".weight_scale", lambda x: x[1:]),
        "weight_scale",
    ),
    "zeros that are not packed": (
        packed(4, 32, sym=False),
        packed_config(4, 32, sym=False),
        put(".weight_zero_point", lambda x: x.to(torch.int8)),
        "weight_zero_point",
    ),
    "scales of the wrong blocks": (
        fp8(16, 128),
        fp8_config(),
        put(".weight_scale_inv", lambda x: x),
        "weight_scale_inv",
    ),
    "FP8 without scales": (fp8(), fp8_config(), leave_out(".weight_scale_inv"), "weight"),
    "FP8 with zeros": (
        fp8(0, 0, ".weight_scale"),
        fp8_config(None),
        lambda tensors: tensors.update({".weight_zero_point": torch.ones(1, dtype=torch.int8)}),
        "weight_zero_point",
    ),
    "scales without FP8": (
        fp8(),
        fp8_config(),
        put(".weight", lambda x: x.to(torch.float32)),
        "weight",
    ),
    "NF4 without absmax": (nf4(), nf4_config(), leave_out(".weight.absmax"), "weight.absmax"),
    "NF4 cut off": (nf4(), nf4_config(), put(".weight", lambda x: x[1:]), "weight"),
    "NF4 with scales cut off": (
        nf4(),
        nf4_config(),
        put(".weight.absmax", lambda x: x[1:]),
        "weight.absmax",
    ),
    "NF4 with half of what its scales need": (
        nf4(nested=True),
        nf4_config(),
        leave_out(".weight.nested_quant_map"),
        "weight.nested_absmax",
    ),
    "NF4 with other numbers": (
        nf4(),
        nf4_config(),
        put(".weight.quant_map", lambda x: x * 2),
        "weight.quant_map",
    ),
    "no whole groups": (awq(), awq_config(40), put(".scales", lambda x: x), "qweight"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_cannot_be_is_named(case: str, tmp_path: Path) -> None:
    quantize, config, change, leaf = DAMAGED[case]
    with pytest.raises(HearthError) as raised:
        matrix(tmp_path, quantize, config, change)
    assert isinstance(raised.value, CorruptFile | UnsupportedModel)
    assert f"'{MODULE}.{leaf}'" in raised.value.message and raised.value.hint
    assert raised.value.data["field"] == f"{MODULE}.{leaf}"


EVERY = (
    (gptq(4, 16, sym=False, order=True), gptq_config(4, 16, sym=False, order=True)),
    (gptq(3), gptq_config(3)),
    (awq(), awq_config()),
    (packed(4, 16, sym=False, order=True), packed_config(4, 16, sym=False, order=True)),
    (int8("channel", sym=False), int8_config("channel", sym=False)),
    (fp8(16, 128), fp8_config((16, 128))),
    (nf4(nested=True), nf4_config()),
)
DTYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32),
    *(torch.float8_e4m3fn, torch.bool),
)


@given(
    made=st.sampled_from(EVERY),
    place=st.integers(0, 5),
    shape=st.lists(st.sampled_from([0, 1, 2, 4, 6, 8, 16, 32, 48, 64, 96]), max_size=3),
    dtype=st.sampled_from([None, *DTYPES]),
    seed=st.integers(0, 99),
)
def test_any_tensor_is_read_or_refused(
    made: tuple[Quantize, dict[str, Any]],
    place: int,
    shape: list[int],
    dtype: torch.dtype | None,
    seed: int,
) -> None:
    """One tensor of another shape or type, or with other values."""
    quantize, config = made

    def change(tensors: dict[str, Tensor]) -> None:
        leaf = sorted(tensors)[place % len(tensors)]
        old = tensors[leaf]
        generator = torch.Generator().manual_seed(seed)
        wanted = tuple(old.shape if dtype is None else shape)
        drawn = torch.randint(-200, 200, wanted, generator=generator)
        tensors[leaf] = drawn.to(dtype or old.dtype)

    with TemporaryDirectory() as folder:
        try:
            found, _, tensor = matrix(Path(folder), quantize, config, change)
        except HearthError as error:
            assert isinstance(error, CorruptFile | UnsupportedModel)  # noqa: PT017 - or none
        else:
            assert found.shape == tensor.shape


def test_a_module_that_is_quantized_against_the_config(tmp_path: Path) -> None:
    config = gptq_config() | {"dynamic": {"-:model": {}}}
    with pytest.raises(CorruptFile, match=r"down_proj.qweight' is quantized"):
        matrix(tmp_path, gptq(), config)


@pytest.mark.parametrize(
    "state",
    [
        b"{",
        b"[]",
        b'{"quant_type": "fp4"}',
        b'{"quant_type": "nf4", "shape": [64], "blocksize": 64}',
        b'{"quant_type": "nf4", "shape": [64, 96.0], "blocksize": 64}',
        b'{"quant_type": "nf4", "shape": [64, 0], "blocksize": 64}',
        b'{"quant_type": "nf4", "shape": [9999999999, 9999999999], "blocksize": 64}',
        b'{"quant_type": "nf4", "shape": [64, 96], "blocksize": 60}',
        b'{"quant_type": "nf4", "shape": [64, 96], "blocksize": 64, "nested_blocksize": 0}',
        b'{"quant_type": "nf4", "shape": [64, 96], "blocksize": 64, "nested_offset": "1"}',
        b'{"quant_type": "nf4", "shape": [64, 96], "blocksize": 64, "nested_offset": 1%0400d}' % 0,
    ],
)
def test_a_state_of_nf4_that_cannot_be(state: bytes, tmp_path: Path) -> None:
    content = torch.tensor(list(state), dtype=torch.uint8)
    leaf = ".weight.quant_state.bitsandbytes__nf4"
    with pytest.raises(CorruptFile) as raised:
        matrix(tmp_path, nf4(), nf4_config(), put(leaf, lambda x: content))
    assert raised.value.data["field"] == MODULE + leaf


@pytest.mark.parametrize("shape", [(8, 32), (40, 64), (200, 96)])
def test_matrices_of_other_shapes(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CODES", 64 * 96)
    for quantize, config in (
        (gptq(3, 32, order=True), gptq_config(3, 32, order=True)),
        (gptq(4, 32, sym=False, order=True), gptq_config(4, 32, sym=False, order=True)),
        (gptq(8, 32), gptq_config(8, 32)),
        (awq(), awq_config()),
        (packed(8, 32, sym=False, order=True), packed_config(8, 32, sym=False, order=True)),
        (packed(4, 32, sym=False, order=True), packed_config(4, 32, sym=False, order=True)),
        (nf4(256, nested=True), nf4_config()),
    ):
        found, expected, tensor = matrix(tmp_path, quantize, config, shape=shape)
        assert torch.equal(found, expected) and tensor.shape == shape


def test_the_first_format_stores_zero_minus_one(tmp_path: Path) -> None:
    """Packed in whole words: zero points of 0 borrow from the next ones."""

    def wrap(tensors: dict[str, Tensor]) -> None:
        tensors[".qzeros"].fill_(-0x11111111)

    found, _, _ = matrix(tmp_path, gptq(sym=False), gptq_config(sym=False), wrap)
    tensors = load_file(tmp_path / "x.safetensors")
    scales = tensors[f"{MODULE}.scales"].float()
    codes = unpack_bits(as_bytes(tensors[f"{MODULE}.qweight"].T), 4)
    assert torch.equal(found, codes.float() * scales.T.repeat_interleave(32, 1))
