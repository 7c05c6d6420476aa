"""Makes the files of this folder with the code of the libraries that define their formats.

Each file holds one matrix as the library packs it, the library's own float32 reading of it
("expected"), and in its metadata the `quantization_config` (for compressed-tensors as its own
models dump it) and the versions. `manifest.json` has their sha256. Hearth's reader is compared with
"expected", and its writer with the packed tensors.

    python -m venv golden && golden/bin/pip install torch safetensors numpy transformers \
        accelerate bitsandbytes compressed-tensors
    golden/bin/pip install --no-deps --target old compressed-tensors==0.12.2
    golden/bin/pip download --no-deps --no-binary :all: --no-build-isolation gptqmodel autoawq
    golden/bin/python tests/quant/golden/generate.py gptqmodel-*.tar.gz autoawq-*.tar.gz old

Importing gptqmodel and autoawq needs a card or many other packages: therefore the functions that
pack and unpack are extracted from their archives and run. The old compressed-tensors is for
activation order, which later versions no longer read; it runs in a separate process (`--old
FOLDER`).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import json
import math
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
MODULE = "model.layers.0.mlp.down_proj"
OUTPUTS, INPUTS = 32, 64
Tensors = dict[str, torch.Tensor]


class Archive:
    """The source text of a package."""

    def __init__(self, path: Path) -> None:
        self.version = path.name.removesuffix(".tar.gz")
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self._root = f"{self.version}/"
        self._path = path

    def tree(self, name: str) -> ast.Module:
        with tarfile.open(self._path) as archive:
            found = archive.extractfile(self._root + name)
            assert found is not None, name
            return ast.parse(found.read().decode())

    def functions(self, name: str, wanted: list[str], space: dict[str, Any]) -> None:
        """Define functions of a module in `space`."""
        body = [
            one
            for one in self.tree(name).body
            if isinstance(one, ast.FunctionDef) and one.name in wanted
        ]
        assert len(body) == len(wanted), (name, wanted)
        for one in body:
            one.decorator_list = []
        self._run(body, name, space)

    def methods(self, name: str, owner: str, wanted: list[str], space: dict[str, Any]) -> type:
        """A class with some methods of the class `owner`."""
        (found,) = (
            one
            for one in self.tree(name).body
            if isinstance(one, ast.ClassDef) and one.name == owner
        )
        found.body = [
            one for one in found.body if isinstance(one, ast.FunctionDef) and one.name in wanted
        ]
        assert len(found.body) == len(wanted), (owner, wanted)
        found.bases = [ast.parse("torch.nn.Module", mode="eval").body]
        self._run([found], name, space)
        made: type = space[owner]
        return made

    def _run(self, body: list[Any], name: str, space: dict[str, Any]) -> None:
        future = ast.parse("from __future__ import annotations").body
        tree = ast.fix_missing_locations(ast.Module([*future, *body], []))
        exec(compile(tree, name, "exec"), space)  # noqa: S102 - the point of this script


def write(name: str, tensors: Tensors, expected: torch.Tensor, **about: Any) -> None:
    stored = {f"{MODULE}{leaf}": one.contiguous() for leaf, one in tensors.items()}
    stored["expected"] = expected.to(torch.float32).contiguous()
    # One entry, because safetensors writes several in arbitrary order.
    save_file(stored, HERE / f"{name}.safetensors", {"about": json.dumps(about)})


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of_gptq(archive: Archive) -> None:
    space: dict[str, Any] = {
        "t": torch,
        "torch": torch,
        "np": np,
        "math": math,
        "nn": torch.nn,
        "_ConvNd": torch.nn.modules.conv._ConvNd,
        "transformers": types.SimpleNamespace(
            pytorch_utils=types.SimpleNamespace(Conv1D=type("Conv1D", (), {}))
        ),
        "THREADPOOLCTL": types.SimpleNamespace(
            threadpool_limits=lambda *_: contextlib.nullcontext()
        ),
        "log": types.SimpleNamespace(info=types.SimpleNamespace(once=lambda *_: None)),
        "PLANAR_BITS": (5, 6, 7),
    }
    layer = "gptqmodel/nn_modules/qlinear/__init__.py"
    archive.functions(layer, ["_torch_right_shift", "_torch_left_shift"], space)
    names = ["pack_original", "dequantize_weight", "_dequantize_from_codes"]
    names += ["_init_wf_unsqueeze_buffers", "_wf_device"]
    kind = archive.methods(layer, "PackableQuantLinear", names, space)
    space["BaseQuantLinear"] = kind
    archive.functions(
        "gptqmodel/utils/model_dequant.py",
        [
            *("_shift_gptq_qzeros", "_revert_gptq_v1_qzeros_correction", "unpack_cols"),
            *("pack_cols", "_unpack_cols_3bit", "_pack_cols_3bit", "_require_int32_words_for_3bit"),
        ],
        space,
    )
    archive.functions("gptqmodel/utils/model.py", ["convert_gptq_v2_to_v1_format_module"], space)
    cases = [
        (bits, sym, order, version, 16)
        for bits in (2, 3, 4, 8)
        for sym, order, version in ((True, False, 1), (False, True, 2))
    ]
    cases += [(4, False, False, 1, 16), (4, True, True, 1, 16), (3, False, False, 1, 16)]
    # Formats that Hearth writes.
    cases += [(bits, sym, False, 2, 16) for bits in (4, 8) for sym in (True, False)]
    cases += [(4, False, False, 2, INPUTS)]
    for seed, (bits, sym, order, version, group) in enumerate(cases):
        maxq = 2**bits - 1
        generator = drawn(seed)
        count = INPUTS // group
        zeros = torch.full((OUTPUTS, count), float((maxq + 1) // 2))
        if not sym:
            zeros = torch.randint(0, maxq + 1, (OUTPUTS, count), generator=generator).float()
        scales = torch.rand((OUTPUTS, count), generator=generator) * 0.1 + 0.01
        scales = scales.half().float()
        codes = torch.randint(0, maxq + 1, (OUTPUTS, INPUTS), generator=generator)
        groups = torch.arange(INPUTS) // group
        if order:
            groups = groups[torch.randperm(INPUTS, generator=generator)]
        linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
        linear.weight.data = (codes - zeros[:, groups]) * scales[:, groups]
        made = kind()
        made.bits, made.maxq, made.planar, made.in_features = bits, maxq, False, INPUTS
        made.pack_dtype, made.pack_dtype_bits, made.pack_factor = torch.int32, 32, 32 // bits
        made.pack_np_dtype, made.pack_np_math_dtype = np.int32, np.uint32
        made.dequant_dtype = torch.int16 if bits == 8 else torch.int8
        made.enable_wf_unsqueeze, made.qzero_format = True, lambda **_: None
        made.pack_original(linear, scales, zeros, groups.to(torch.int32))
        stored_scales = made.scales
        made.scales = stored_scales.float()
        expected = made.dequantize_weight().T
        assert torch.equal(expected.round(decimals=4), linear.weight.data.round(decimals=4))
        if version == 1:
            space["convert_gptq_v2_to_v1_format_module"](made, made)
        tensors = {
            ".qweight": made.qweight,
            ".qzeros": made.qzeros,
            ".scales": stored_scales,
            ".g_idx": made.g_idx,
        }
        config = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group if group < INPUTS else -1,
            "sym": sym,
            "desc_act": order,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
        }
        name = f"gptq-{bits}-{'sym' if sym else 'asym'}{'-order' if order else ''}-v{version}"
        name += "-rows" if group == INPUTS else ""
        write(name, tensors, expected, config=config, made_by=[archive.version, archive.sha256])


def of_awq(archive: Archive) -> None:
    space: dict[str, Any] = {
        "torch": torch,
        "get_best_device": lambda: "cpu",
        "AWQ_REVERSE_ORDER": [0, 4, 1, 5, 2, 6, 3, 7],
    }
    packing = "awq/utils/packing_utils.py"
    constants = [one for one in archive.tree(packing).body if isinstance(one, ast.Assign)]
    archive._run(constants, packing, space)
    archive.functions(packing, ["unpack_awq", "reverse_awq_order", "dequantize_gemm"], space)
    # `from_linear` makes an object of its class, whose other methods need kernels.
    gemm = "awq/modules/linear/gemm.py"
    kind = archive.methods(gemm, "WQLinear_GEMM", ["__init__", "from_linear"], space)
    kind.from_linear = classmethod(kind.from_linear.__func__)
    generator, group = drawn(100), 16
    count = INPUTS // group
    codes = torch.randint(0, 16, (OUTPUTS, INPUTS), generator=generator)
    zeros = torch.randint(0, 16, (count, OUTPUTS), generator=generator).float()
    scales = (torch.rand((count, OUTPUTS), generator=generator) * 0.1 + 0.01).half()
    groups = torch.arange(INPUTS) // group
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    linear.weight.data = (codes - zeros.T[:, groups]) * scales.float().T[:, groups]
    made = kind.from_linear(linear, 4, group, scales=scales.float(), zeros=zeros)
    expected = space["dequantize_gemm"](made.qweight, made.qzeros, made.scales.float(), 4, group).T
    tensors = {".qweight": made.qweight, ".qzeros": made.qzeros, ".scales": made.scales}
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
    }
    write("awq-gemm", tensors, expected, config=config, made_by=[archive.version, archive.sha256])


def of_compressed() -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    integers: dict[str, Any] = {"num_bits": 4, "type": "int"}
    floats: dict[str, Any] = {"num_bits": 8, "type": "float"}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "int4-group": ("pack-quantized", {**integers, "strategy": "group", "group_size": 16}),
        "int4-group-asym": (
            "pack-quantized",
            {**integers, "strategy": "group", "group_size": 16, "symmetric": False},
        ),
        "int8-packed-asym": (
            "pack-quantized",
            {**integers, "num_bits": 8, "strategy": "channel", "symmetric": False},
        ),
        "int8-tensor": ("int-quantized", {**integers, "num_bits": 8, "strategy": "tensor"}),
        "int8-channel": ("int-quantized", {**integers, "num_bits": 8, "strategy": "channel"}),
        "int8-channel-asym": (
            "int-quantized",
            {**integers, "num_bits": 8, "strategy": "channel", "symmetric": False},
        ),
        "fp8-tensor": ("float-quantized", {**floats, "strategy": "tensor"}),
        "fp8-channel": ("float-quantized", {**floats, "strategy": "channel"}),
        "fp8-block": (
            "float-quantized",
            {**floats, "strategy": "block", "block_structure": [8, 128]},
        ),
    }
    # A format that Hearth writes: its scales are not bfloat16.
    eights = {**integers, "num_bits": 8}
    cases |= {
        "written-int4": ("pack-quantized", {**integers, "strategy": "group", "group_size": 16}),
        "written-int4-asym": (
            "pack-quantized",
            {**integers, "strategy": "group", "group_size": 16, "symmetric": False},
        ),
        "written-int4-rows-asym": (
            "pack-quantized",
            {**integers, "strategy": "channel", "symmetric": False},
        ),
        "written-int8": ("pack-quantized", {**eights, "strategy": "channel"}),
        "written-int8-groups-asym": (
            "pack-quantized",
            {**eights, "strategy": "group", "group_size": 16, "symmetric": False},
        ),
        "written-int8-tensor": ("int-quantized", {**eights, "strategy": "tensor"}),
        "written-fp8": ("float-quantized", {**floats, "strategy": "channel"}),
        "written-fp8-tensor": ("float-quantized", {**floats, "strategy": "tensor"}),
        "written-fp8-blocks": (
            "float-quantized",
            {**floats, "strategy": "block", "block_structure": [128, 128]},
        ),
    }
    for seed, (name, (layout, weights)) in enumerate(cases.items()):
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=layout)
        args = scheme.weights
        shape = (20, 200) if args.strategy == "block" else (OUTPUTS, INPUTS)
        weight = torch.randn(shape, generator=drawn(200 + seed))
        if args.strategy == "tensor":
            low, high = weight.amin().reshape(1), weight.amax().reshape(1)
        elif args.strategy == "channel":
            low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        elif args.strategy == "group":
            parts = weight.unflatten(1, (-1, args.group_size))
            low, high = parts.amin(-1), parts.amax(-1)
        else:
            rows, columns = args.block_structure
            padded = torch.nn.functional.pad(weight, (0, -shape[1] % columns, 0, -shape[0] % rows))
            parts = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
            low, high = parts.amin((1, 3)), parts.amax((1, 3))
        scale, zero = calculate_qparams(low, high, args)
        is_ours = name.startswith("written")
        dtype = torch.float16 if name == "written-int4" else torch.float32
        scale = scale.to(dtype if is_ours else torch.bfloat16)
        state = {"weight": weight, "weight_scale": scale.float(), "weight_zero_point": zero}
        compressor = BaseCompressor.get_value_from_registry(layout)
        packed = compressor.compress(dict(state), scheme)
        plain = compressor.decompress(dict(packed), scheme)["weight"]
        packed["weight_scale"] = scale
        tensors = {f".{leaf}": one for leaf, one in packed.items() if one is not None}
        config = QuantizationConfig(
            config_groups={"group_0": scheme},
            format=layout,
            ignore=["lm_head"],
            quantization_status="compressed" if is_ours else "initialized",
        ).model_dump(mode="json")
        version = importlib.metadata.version("compressed-tensors")
        write(
            f"compressed-{name}",
            tensors,
            plain,
            config=config,
            made_by=[f"compressed-tensors {version}"],
        )


def of_old_compressed(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import compressed_tensors
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
        PackedQuantizationCompressor,
        unpack_from_int32,
    )
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams

    assert Path(compressed_tensors.__file__).is_relative_to(folder.resolve())
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
    args = QuantizationArgs(**weights, symmetric=False, actorder="group")
    generator = drawn(300)
    weight = torch.randn((OUTPUTS, INPUTS), generator=generator)
    order = torch.randperm(INPUTS, generator=generator)
    groups = torch.arange(INPUTS).div(16, rounding_mode="floor")[order].to(torch.int32)
    by_group = weight[:, groups.argsort(stable=True)].unflatten(1, (-1, 16))
    scale, zero = calculate_qparams(by_group.amin(-1), by_group.amax(-1), args)
    scale = scale.to(torch.bfloat16)
    made = PackedQuantizationCompressor().compress_weight(
        weight, scale.float(), args, zero_point=zero, g_idx=groups
    )
    codes = unpack_from_int32(made["weight_packed"], 4, weight.shape)
    plain = dequantize(codes, scale.float(), zero, args=args, g_idx=groups)
    tensors = {f".{leaf}": one for leaf, one in made.items()}
    tensors |= {".weight_scale": scale, ".weight_g_idx": groups}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**weights, "symmetric": False, "actorder": "group"},
            }
        },
        "ignore": ["lm_head"],
    }
    made_by = [f"compressed-tensors {importlib.metadata.version('compressed-tensors')}"]
    write("compressed-int4-order", tensors, plain, config=config, made_by=made_by)


def of_transformers() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Quantize, _dequantize_fp8_weight
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.utils.quantization_config import FineGrainedFP8Config

    made_by = [f"transformers {importlib.metadata.version('transformers')}"]
    for name, block, shape in (
        ("fp8-blocks", (8, 128), (16, 256)),
        ("fp8-one-scale", None, (OUTPUTS, INPUTS)),
    ):
        config = FineGrainedFP8Config(weight_block_size=block)
        quantizer = types.SimpleNamespace(quantization_config=config)
        weight = torch.randn(shape, generator=drawn(400))
        found = Fp8Quantize(quantizer).convert({f"{MODULE}.weight": weight})
        tensors = {leaf.removeprefix(MODULE): one for leaf, one in found.items()}
        scale = tensors[".weight_scale_inv"]
        if block is None:
            scale = tensors[".weight_scale_inv"] = scale.reshape([])
        plain = _dequantize_fp8_weight(tensors[".weight"], scale, block, torch.float32)
        write(name, tensors, plain, config=config.to_dict(), made_by=made_by)
    # Blocks in which the matrix ends: transformers reads them, but quantizes only whole ones.
    config = FineGrainedFP8Config(weight_block_size=(8, 128))
    generator = drawn(401)
    values = torch.randn((20, 200), generator=generator).mul_(50).to(torch.float8_e4m3fn)
    scale = torch.rand((3, 2), generator=generator) + 0.5
    plain = _dequantize_fp8_weight(values, scale, (8, 128), torch.float32)
    tensors = {".weight": values, ".weight_scale_inv": scale}
    write("fp8-part-blocks", tensors, plain, config=config.to_dict(), made_by=made_by)
    generator = drawn(402)
    blocks = torch.randint(0, 256, (2, 8, 2, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(110, 130, (2, 8, 2), generator=generator).to(torch.uint8)
    # transformers has [experts, inputs, outputs].
    plain = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    tensors = {"_blocks": blocks, "_scales": scales}
    write("mxfp4", tensors, plain, config={"quant_method": "mxfp4"}, made_by=made_by)


def of_bitsandbytes() -> None:
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from bitsandbytes.functional import dequantize_4bit, dequantize_blockwise, quantize_4bit

    made_by = [f"bitsandbytes {importlib.metadata.version('bitsandbytes')}"]
    for name, nested, block, shape in (
        ("nf4", False, 64, (OUTPUTS, INPUTS)),
        ("nf4-double", True, 64, (OUTPUTS, INPUTS)),
        ("nf4-double-across-outputs", True, 64, (20, 96)),
        ("nf4-large-blocks", False, 128, (OUTPUTS, INPUTS)),
    ):
        weight = torch.randn(shape, generator=drawn(500))
        packed, state = quantize_4bit(
            weight, blocksize=block, compress_statistics=nested, quant_type="nf4"
        )
        plain = dequantize_4bit(packed, state)
        if shape[1] % block:
            # The kernel for processors begins a block with each output (0.50.2), unlike the
            # quantized data; the library's own reference agrees with its kernels for cards.
            absmax = state.absmax
            if nested:
                absmax = dequantize_blockwise(absmax, state.state2) + state.offset
            plain = _dequantize_4bit_compute(
                packed.flatten(), absmax, state.code, block, shape, torch.float32
            )
            assert (plain - weight).abs().mean() < 0.1
        tensors = {".weight": packed}
        tensors |= {f".weight.{leaf}": one for leaf, one in state.as_dict(packed=True).items()}
        config = {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": nested,
        }
        write(name, tensors, plain, config=config, made_by=made_by)


def main() -> None:
    if sys.argv[1] == "--old":
        of_old_compressed(Path(sys.argv[2]))
        return
    gptqmodel, autoawq, old = (Path(one) for one in sys.argv[1:4])
    for path in HERE.glob("*.safetensors"):
        path.unlink()
    of_gptq(Archive(gptqmodel))
    of_awq(Archive(autoawq))
    of_compressed()
    subprocess.run([sys.executable, __file__, "--old", str(old)], check=True)
    of_transformers()
    of_bitsandbytes()
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(HERE.glob("*.safetensors"))
    }
    (HERE / "manifest.json").write_text(json.dumps(sums, indent=1) + "\n")


if __name__ == "__main__":
    main()
