"""Matrices out of checkpoints are the ones that the libraries read that own their formats, number
by number. `golden/generate.py` runs these, and says how.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from hearth.kernels.packed import PackedWeight
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.json_fields import Fields
from hearth.quant.mxfp4 import pack_mxfp4
from hearth.quant.safetensors import SafetensorsTensors
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
