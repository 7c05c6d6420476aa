"""Importance matrices with llama.cpp, from the inputs of each matrix in the scheduler's callback.

`cb_eval` is called for each node of a graph before it is computed, and again afterwards for the
nodes that it accepted (`ggml_backend_sched_set_eval_callback`), as in llama.cpp's `tools/imatrix`.
Everything is computed on processors, so that all data is in readable memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row
from hearth.backends.errors import BackendUnavailable, InternalError, UnsupportedModel
from hearth.backends.llamacpp.context import Batch, Context
from hearth.backends.llamacpp.footprint import plan_for
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer
from hearth.quant.ggml import library_path
from hearth.quant.gguf import preflight
from hearth.quant.gguf.imatrix import PART_TOKENS, WINDOW_TOKENS
from hearth.quant.gguf.imatrix_sums import Sums, windows_of

_FLOAT: Final = 0
"""`GGML_TYPE_F32`."""
_SCOPE: Final = b"#"
"""Delimits the original name in names of copies on other devices: `CPU#blk.0.attn_k.weight#0`."""


class _Tensor(ctypes.Structure):
    """`ggml_tensor` of ggml.h."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
]


def collect(
    path: Path,
    text: str,
    sums: Sums,
    *,
    threads: int,
    on_window: Callable[[int, int], None],
) -> int:
    """Run the model at `path` over `text` and add the inputs of its matrices to `sums`.

    Args:
        path: a GGUF file.
        on_window: called after each window with the number of windows done and in all; may raise to
            stop.

    Returns:
        The number of windows that were run.

    Raises:
        UnsupportedModel: the model does not generate text.
        CannotQuantize: the text is too short, or an input is not a finite number.
        BackendUnavailable: the library is missing, or lays out tensors differently.
        CorruptFile: the file is damaged.
        DoesNotFit: there is not enough memory.
    """
    header = preflight.check(path)
    if header.is_encoder:
        raise UnsupportedModel(f"{path.name} generates no text, so no importance matrix is made.")
    settings = ModelSettings(
        context=WINDOW_TOKENS,
        max_sessions=1,
        kv_pool="static",
        kv_type="f32",
        flash_attention=False,
    )
    plan = plan_for(header, settings)
    model = LlamaModel.open(path)
    try:
        tokenizer = LlamaTokenizer(model)
        begin = tokenizer.encode("", special=False, add_bos=True)
        ids = tokenizer.encode(text, special=True, add_bos=False)
        windows = windows_of(ids, begin)
        watch = _Watch(model.library.api, sums)
        context = _WatchedContext(
            model,
            plan,
            WINDOW_TOKENS,
            None,
            "Close other programs.",
            n_batch=PART_TOKENS,
            n_ubatch=PART_TOKENS,
            n_seq_max=1,
            n_outputs_max=PART_TOKENS,
            n_threads=threads,
            n_threads_batch=threads,
            op_offload=False,
            offload_kqv=False,
            cb_eval=watch.callback,
        )
        try:
            for done, window in enumerate(windows, 1):
                context.run(window, watch)
                on_window(done, len(windows))
        finally:
            context.close()
    finally:
        model.close()
    return len(windows)


class _WatchedContext(Context):
    def run(self, window: Sequence[int], watch: _Watch) -> None:
        """Compute `window` from an empty context.

        All rows of logits are requested, because the last layer computes nothing for other rows.
        """
        batch = Batch(self._api, PART_TOKENS)
        self._api.llama_memory_clear(self._memory, True)
        for start in range(0, len(window), PART_TOKENS):
            part = tuple(window[start : start + PART_TOKENS])
            batch.fill([Row(0, start, part, len(part), handle=0)])
            status = int(self._api.llama_decode(self._handle, batch.struct))
            if watch.error is not None:
                raise watch.error
            if status != 0:
                raise InternalError(f"llama.cpp answered {status}: {self._log.said()}")


class _Watch:
    """The callback. An exception in it is stored in `error`, because C cannot propagate it."""

    def __init__(self, api: Any, sums: Sums) -> None:
        self.error: Exception | None = None
        self._sums = sums
        self._names: dict[int, str] = {}
        """Names of ops, by number."""
        base = ctypes.CDLL(str(library_path()))
        self._op_name, self._name = base.ggml_op_name, base.ggml_get_name
        self._op_name.restype, self._op_name.argtypes = ctypes.c_char_p, (ctypes.c_int,)
        self._name.restype, self._name.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
        self.callback = api.ggml_backend_sched_eval_callback(self._called)

    def _called(self, address: int, asks: bool, _user_data: object) -> bool:
        if self.error is not None:
            return False
        try:
            return self._take(address, asks)
        except Exception as error:  # noqa: BLE001 - raised again outside of C
            self.error = error
            return False

    def _take(self, address: int, asks: bool) -> bool:
        node = _Tensor.from_address(address)
        if node.op not in self._names:
            self._check_layout(node, address)
            self._names[node.op] = (self._op_name(node.op) or b"").decode()
        op = self._names[node.op]
        if op not in ("MUL_MAT", "MUL_MAT_ID"):
            return False
        weight, rows = node.src[0].contents, node.src[1].contents
        name = _plain(weight.name)
        if name not in self._sums.wanted or rows.type != _FLOAT:
            return False
        if asks:
            return True
        if op == "MUL_MAT":
            self._add(name, weight, rows)
        else:
            self._add_experts(name, weight, rows, node.src[2].contents)
        return True

    def _add(self, name: str, weight: _Tensor, rows: _Tensor) -> None:
        """Add inputs as `collect_imatrix` does.

        A tensor of several matrices has sums for each. If the inputs have more dimensions than the
        weights, these are further rows.
        """
        data = _strided(rows, np.float32)
        deep, matrices = weight.ne[3], weight.ne[2] * weight.ne[3]
        for outer in range(data.shape[0]):
            for inner in range(data.shape[1]):
                matrix = outer % deep * weight.ne[2] + inner % weight.ne[2]
                self._sums.add([name], data[outer, inner], matrix=matrix, matrices=matrices)

    def _add_experts(self, name: str, weight: _Tensor, rows: _Tensor, ids: _Tensor) -> None:
        chosen = _strided(ids, np.int32)[0, 0]  # [tokens, used]
        inputs = _strided(rows, np.float32)[0]  # [tokens, used or 1, columns]
        each = np.broadcast_to(inputs, (*chosen.shape, inputs.shape[-1]))
        order = chosen.ravel().argsort(kind="stable")
        counts = np.bincount(chosen.ravel(), minlength=weight.ne[2])
        offsets = [0, *counts.cumsum().tolist()]
        self._sums.add_sorted([name], each.reshape(-1, each.shape[-1])[order], offsets)

    def _check_layout(self, node: _Tensor, address: int) -> None:
        """Check that `_Tensor` matches this library, by the address of the name."""
        if self._name(address) != ctypes.addressof(node) + _Tensor.name.offset:
            raise BackendUnavailable(
                "This version of llama.cpp lays tensors out otherwise, so no importance matrix can "
                "be made with it.",
                "Use the native runner (--backend native), or llama-cpp-python 0.3.36.",
            )


def _plain(name: bytes) -> str:
    """A tensor's name without what the scheduler adds to names of copies."""
    parts = name.split(_SCOPE)
    return (parts[1] if len(parts) > 1 else name).decode("utf-8", "replace")


def _strided(tensor: _Tensor, dtype: type[np.generic]) -> Any:
    """A view of the data of `tensor`, [ne3, ne2, ne1, ne0]."""
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (size + np.dtype(dtype).itemsize)).from_address(tensor.data)
    return as_strided(np.frombuffer(memory, dtype, count=1), shape, strides, writeable=False)
