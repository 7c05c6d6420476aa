"""Matrices read from checkpoints equal, number by number, those read by the libraries that define
the formats, and are written as these pack them, bit by bit. `golden/generate.py` runs these
libraries, and documents how.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.modules import STATE
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import Layout, QuantizedTensor
from hearth.quant.folders.config import quantization_config
from hearth.quant.folders.encode import stored_tensors
from hearth.quant.folders.storage import Storage
from hearth.quant.json_fields import Fields
from hearth.quant.mxfp4 import pack_mxfp4
from hearth.quant.safetensors import DTYPES, SafetensorsTensors
from hearth.quant.safetensors_header import read_header

GOLDEN = Path(__file__).parent / "golden"
SUMS: dict[str, str] = json.loads((GOLDEN / "manifest.json").read_text())


def test_every_format_has_its_files() -> None:
    assert {path.name for path in GOLDEN.glob("*.safetensors")} == SUMS.keys()
    kinds = {Path(name).stem.partition("-")[0] for name in SUMS}
    assert kinds == {"gptq", "awq", "compressed", "fp8", "nf4", "mxfp4"}
    for name, expected in SUMS.items():
        assert hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() == expected, name


@pytest.mark.parametrize("name", SUMS)
def test_a_matrix_is_what_its_library_reads(name: str) -> None:
    header = read_header(GOLDEN / name)
    config = json.loads(header.metadata["about"])["config"]
    model_type = "gpt_oss" if config["quant_method"] == "mxfp4" else "llama"
    values = {"model_type": model_type, "quantization_config": config}
    file = SafetensorsTensors((header,), read_checkpoint(Fields(GOLDEN / "config.json", values)))
    found = [one for one in file.stored.values() if isinstance(one, QuantizedTensor)]
    if found:
        (tensor,) = found
        part = read_quantized(tensor, file.read)
        assert set(file.stored) == {tensor.name, "expected"}
    else:
        both = sorted(stored for stored in file.stored if stored != "expected")
        part = PackedWeight(pack_mxfp4(*(file.read(one) for one in both)), "MXFP4")
    assert torch.equal(part.unpacked(torch.float32), file.read("expected"))


def _int(layout: Layout, bits: int, group: int | None = 16, *, symmetric: bool = True) -> Storage:
    return Storage(layout, "int", bits, "group" if group else "row", group, symmetric)


WRITTEN = {
    "gptq-4-sym-v2": _int("gptq", 4),
    "gptq-4-asym-v2": _int("gptq", 4, symmetric=False),
    "gptq-4-asym-v2-rows": _int("gptq", 4, None, symmetric=False),
    "gptq-8-sym-v2": _int("gptq", 8),
    "gptq-8-asym-v2": _int("gptq", 8, symmetric=False),
    "awq-gemm": _int("awq", 4, symmetric=False),
    "compressed-written-int4": _int("packed", 4),
    "compressed-written-int4-asym": _int("packed", 4, symmetric=False),
    "compressed-written-int4-rows-asym": _int("packed", 4, None, symmetric=False),
    "compressed-written-int8": _int("packed", 8, None),
    "compressed-written-int8-groups-asym": _int("packed", 8, symmetric=False),
    "compressed-written-int8-tensor": Storage("scaled", "int", 8, "tensor", None),
    "compressed-written-fp8": Storage("scaled", "fp8", 8, "row", None),
    "compressed-written-fp8-tensor": Storage("scaled", "fp8", 8, "tensor", None),
    "compressed-written-fp8-blocks": Storage("scaled", "fp8", 8, "block", 128),
    "nf4": Storage("nf4", "nf4", 4, "group", 64),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_matrix_is_written_as_its_library_packs_it(name: str) -> None:
    """Every tensor, to the bit, and its entry in the config."""
    header = read_header(GOLDEN / f"{name}.safetensors")
    config = json.loads(header.metadata["about"])["config"]
    values = {"model_type": "llama", "quantization_config": config}
    file = SafetensorsTensors((header,), read_checkpoint(Fields(GOLDEN / "config.json", values)))
    (tensor,) = (one for one in file.stored.values() if isinstance(one, QuantizedTensor))
    storage, (outputs, inputs) = WRITTEN[name], tensor.shape
    written = stored_tensors(storage, read_quantized(tensor, file.read))
    leaves = storage.leaves(outputs, inputs)
    assert set(written) == set(tensor.parts) == {leaf for leaf, _, _ in leaves}
    for leaf, kind, shape in leaves:
        theirs = file.read(tensor.parts[leaf])
        assert (theirs.dtype, tuple(theirs.shape)) == (DTYPES[kind], shape) or leaf == STATE
        ours = written[leaf]
        if leaf == STATE:  # Hearth also stores the dtype that it is dequantized to.
            state, own = (json.loads(bytes(one.tolist())) for one in (theirs, ours))
            assert state | {"dtype": own["dtype"]} == own
        else:
            bits = [one.flatten().view(torch.uint8) for one in (ours, theirs)]
            assert torch.equal(*bits), leaf
    own = quantization_config(storage, ["lm_head"])
    if name.startswith("compressed"):
        assert own.pop("dequantize", False) == (not storage.symmetric)
    assert is_said(own, config), own


def is_said(ours: Any, theirs: Any) -> bool:
    """Whether all values of `ours` equal those of `theirs`. Values that `theirs` omits have a
    default.
    """
    if isinstance(ours, dict):
        return all(is_said(value, theirs[key]) for key, value in ours.items() if key in theirs)
    return bool(ours == theirs)
