"""How fast a runner is with one kind of model: measured on a small random one, in seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.bench.cases import Case
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.measure import median_rate
from hearth.backends.contract.models import BackendName, ModelSettings, ModelSpec
from hearth.backends.errors import UnsupportedModel
from hearth.backends.worker.runners import open_model
from hearth.backends.worker.speeds import Speed
from hearth.quant.ggml import Ggml
from hearth.quant.gguf.types import TensorType

_WIDTH: Final = 1024
_HIDDEN: Final = 2816
_HEADS: Final = 16
_KV_HEADS: Final = 4
_LAYERS: Final = 4
_VOCABULARY: Final = 4096
_CONTEXT: Final = 1024
"""Shapes of a small llama: 53 million weights, which no cache holds, in rows of whole blocks."""
_PROMPT: Final = 256
_STEPS: Final = 24
_REPEATS: Final = 3
_SEED: Final = 20_011


def measure_runner(runner: BackendName, kind: str, cache_dir: Path) -> Speed:
    """Prefill and decode of one session: the medians of three measurements, after one that does not
    count.

    Args:
        kind: from `hearth.backends.worker.speeds.kind_of`.
        cache_dir: where verdicts about this machine are kept.

    Raises:
        UnsupportedModel: there is no such type, or no random weights of it can be made.
        HearthError: what `open_model` raises.
    """
    with tempfile.TemporaryDirectory(prefix="hearth-speed-") as folder:
        path = write_probe(Path(folder, "probe.gguf"), kind)
        settings = ModelSettings(context=_CONTEXT, max_sessions=1, kv_pool="static")
        loaded = open_model(ModelSpec(str(path), "probe", runner, settings), cache_dir)
        try:
            side = EngineSide(loaded)
            prefill = Case("prefill", "pp", 1, _PROMPT, 0, 0, fresh=True)
            decode = Case("decode", "depth", 1, _PROMPT, 0, _STEPS, fresh=False)
            return Speed(*(median_rate(case, side, _REPEATS) for case in (prefill, decode)))
        finally:
            loaded.runner.close()


def write_probe(path: Path, kind: str) -> Path:
    """A llama with random weights of the GGUF type `kind`; all its layers are alike.

    Raises:
        UnsupportedModel: there is no such type, or it needs more than random weights.
        GgmlUnavailable: the library that packs weights is not installed.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hearth speed probe")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCABULARY)
    _add_vocabulary(writer)
    pack = _Packer(kind)
    ones = np.ones(_WIDTH, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", pack.rows(_VOCABULARY, _WIDTH), raw_dtype=pack.type)
    writer.add_tensor("output_norm.weight", ones)
    layer = {name: pack.rows(*shape) for name, shape in _MATRICES.items()}
    for index in range(_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{index}.{name}.weight", ones)
        for name, rows in layer.items():
            writer.add_tensor(f"blk.{index}.{name}.weight", rows, raw_dtype=pack.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: Any) -> None:
    """What every vocabulary of that kind has, and words that nobody writes."""
    from gguf import TokenType

    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    rest = _VOCABULARY - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens + [f"▁{index}" for index in range(rest)])
    writer.add_token_scores([0.0] * _VOCABULARY)
    writer.add_token_types([int(kind) for kind in kinds] + [int(TokenType.NORMAL)] * rest)


_KEYS: Final = _WIDTH // _HEADS * _KV_HEADS
_MATRICES: Final = {
    "attn_q": (_WIDTH, _WIDTH),
    "attn_k": (_KEYS, _WIDTH),
    "attn_v": (_KEYS, _WIDTH),
    "attn_output": (_WIDTH, _WIDTH),
    "ffn_gate": (_HIDDEN, _WIDTH),
    "ffn_up": (_HIDDEN, _WIDTH),
    "ffn_down": (_WIDTH, _HIDDEN),
}


class _Packer:
    """Makes random rows of one type."""

    def __init__(self, kind: str) -> None:
        import gguf

        if kind not in TensorType.__members__:
            raise UnsupportedModel(f"There is no GGUF type {kind}.")
        self._kind = TensorType[kind]
        self.type: Any = gguf.GGMLQuantizationType[kind]
        self._ggml = Ggml()
        self._ggml.prepare(self._kind)
        self._stream = np.random.default_rng(_SEED)

    def rows(self, count: int, length: int) -> NDArray[Any]:
        """[count, bytes of a row] uint8, of weights with mean 0."""
        weights = self._stream.standard_normal((count, length), np.float32) * length**-0.5
        packed = self._ggml.quantize_chunk(self._kind, weights.astype(np.float32, copy=False))
        return packed.reshape(count, -1)
