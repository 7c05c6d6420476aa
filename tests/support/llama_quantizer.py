"""llama.cpp's own quantizer, called in a separate process, because it aborts on unsupported input.

`llama_types` asks which types it would choose, `llama_quantize` has it write files.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_ALLOWS = "_Z38llama_quant_tensor_allows_quantizationPK19quantize_state_implPK11ggml_tensor"
_COMPUTE = (
    "_Z25llama_quant_compute_typesP19quantize_state_impl11llama_ftypePP11ggml_tensorP9ggml_typem"
)


@dataclass(frozen=True)
class Model:
    """A model of which only the description exists. Tensors: (name, shape in ggml's order)."""

    architecture: str
    layers: int
    heads: int = 32
    heads_kv: int = 8
    experts: int = 0
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Order:
    """A file that llama.cpp must write. `imatrix`: values by tensor; `tensors`: (pattern, type);
    `pairs`: further metadata.
    """

    source: str
    target: str
    file_type: int
    imatrix: dict[str, list[float]] | None = None
    tensors: tuple[tuple[str, int], ...] = ()
    pairs: dict[str, str | int] = field(default_factory=dict)
    dry_run: bool = False
    requantize: bool = False


def llama_types(
    models: Sequence[Model], file_types: Sequence[int]
) -> list[tuple[list[bool], list[list[int]]]]:
    """For each model: whether each tensor may be quantized and, for each file type, the types of
    the tensors that may.
    """
    question = {"models": [asdict(model) for model in models], "file_types": list(file_types)}
    return [(allowed, types) for allowed, types in _ask("types", question)]


def llama_quantize(orders: Sequence[Order]) -> list[tuple[bool, str]]:
    """For each order: whether it succeeded, and llama.cpp's log."""
    return [(ok, log) for ok, log in _ask("files", [asdict(order) for order in orders])]


def _ask(kind: str, question: Any) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, kind],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if done.returncode:
        raise AssertionError(f"llama.cpp ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


class _Description(ctypes.Structure):
    _fields_ = [("architecture", ctypes.c_char_p)] + [
        (name, ctypes.c_uint32)
        for name in "embd ff layer head head_kv expert embd_head_k embd_head_v".split()
    ]


class _InitParams(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


def _types(question: dict[str, Any]) -> list[Any]:
    import llama_cpp

    llama, ggml = llama_cpp.llama_cpp._lib, _ggml()
    describe = llama["_Z31llama_quant_model_from_metadataPK22llama_quant_model_desc"]
    start = llama["_Z16llama_quant_initPK11llama_modelPK27llama_model_quantize_params"]
    allows = llama[_ALLOWS]
    compute = llama[_COMPUTE]
    pointer = ctypes.c_void_p
    describe.restype, describe.argtypes = pointer, [ctypes.POINTER(_Description)]
    start.restype, start.argtypes = pointer, [pointer, pointer]
    allows.restype, allows.argtypes = ctypes.c_bool, [pointer, pointer]
    compute.restype = None
    compute.argtypes = [pointer, ctypes.c_int, pointer, pointer, ctypes.c_size_t]
    params = llama_cpp.llama_model_quantize_default_params()
    answers = []
    for model in question["models"]:
        described = _Description(
            model["architecture"].encode(),
            *(256, 256, model["layers"], model["heads"], model["heads_kv"], model["experts"]),
            *(64, 64),
        )
        state = start(describe(ctypes.byref(described)), ctypes.addressof(params))
        tensors = _tensors(ggml, model["tensors"])
        allowed = [allows(state, tensor) for tensor in tensors]
        asked = [tensor for tensor, may in zip(tensors, allowed, strict=True) if may]
        types = []
        for file_type in question["file_types"]:
            result = (ctypes.c_int * len(asked))()
            compute(state, file_type, (pointer * len(asked))(*asked), result, len(asked))
            types.append(list(result))
        answers.append((allowed, types))
    return answers


def _ggml() -> ctypes.CDLL:
    from hearth.quant.ggml import library_path

    ggml = ctypes.CDLL(str(library_path()))
    ggml.ggml_init.restype, ggml.ggml_init.argtypes = ctypes.c_void_p, [_InitParams]
    ggml.ggml_tensor_overhead.restype = ctypes.c_size_t
    ggml.ggml_new_tensor.restype = ctypes.c_void_p
    ggml.ggml_new_tensor.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    ggml.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return ggml


def _tensors(ggml: ctypes.CDLL, shapes: list[Any]) -> list[int]:
    room = (len(shapes) + 1) * ggml.ggml_tensor_overhead()
    context = ggml.ggml_init(_InitParams(room, None, True))
    tensors = []
    for name, shape in shapes:
        lengths = (ctypes.c_int64 * len(shape))(*shape)
        tensors.append(ggml.ggml_new_tensor(context, 1, len(shape), lengths))
        ggml.ggml_set_name(tensors[-1], name.encode())
    return tensors


def _files(orders: list[dict[str, Any]], log: list[str]) -> list[Any]:
    import llama_cpp

    answers = []
    for order in orders:
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.nthread = order["file_type"], 2
        params.dry_run, params.allow_requantize = order["dry_run"], order["requantize"]
        kept = [_fill_imatrix(llama_cpp, params, order), _fill_tensors(llama_cpp, params, order)]
        kept.append(_fill_pairs(llama_cpp, params, order))
        log.clear()
        code = llama_cpp.llama_model_quantize(
            order["source"].encode(), order["target"].encode(), ctypes.byref(params)
        )
        answers.append((code == 0, "".join(log)))
    return answers


def _fill_imatrix(llama_cpp: Any, params: Any, order: dict[str, Any]) -> Any:
    if order["imatrix"] is None:
        return None
    array = (llama_cpp.llama_model_imatrix_data * (len(order["imatrix"]) + 1))()
    kept = [array]
    for entry, (name, values) in zip(array, order["imatrix"].items(), strict=False):
        data = (ctypes.c_float * len(values))(*values)
        entry.name, entry.data, entry.size = name.encode(), data, len(values)
        kept.append(data)
    params.imatrix = ctypes.cast(array, type(params.imatrix))
    return kept


def _fill_tensors(llama_cpp: Any, params: Any, order: dict[str, Any]) -> Any:
    if not order["tensors"]:
        return None
    array = (llama_cpp.llama_model_tensor_override * (len(order["tensors"]) + 1))()
    for entry, (pattern, kind) in zip(array, order["tensors"], strict=False):
        entry.pattern, entry.type = pattern.encode(), kind
    params.tt_overrides = ctypes.cast(array, type(params.tt_overrides))
    return array


def _fill_pairs(llama_cpp: Any, params: Any, order: dict[str, Any]) -> Any:
    if not order["pairs"]:
        return None
    array = (llama_cpp.llama_model_kv_override * (len(order["pairs"]) + 1))()
    for entry, (key, value) in zip(array, order["pairs"].items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, int):
            entry.tag, entry.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
        else:
            entry.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
            entry.value.val_str = value.encode()
    params.kv_overrides = ctypes.cast(array, type(params.kv_overrides))
    return array


def _main() -> None:
    import llama_cpp

    log: list[str] = []
    note = llama_cpp.llama_log_callback(lambda level, text, data: log.append(text.decode()))
    llama_cpp.llama_log_set(note, None)
    question = json.loads(sys.stdin.read())
    answer = _types(question) if sys.argv[1] == "types" else _files(question, log)
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
