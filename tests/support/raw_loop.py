"""Greedy decoding on llama.cpp's bare C interface: the reference for the runner.

Shares no code with the runner: one context, one sequence, one token at a time after the prompt.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np


class RawModel:
    """A model and context in exact mode: float32 KV, flash attention off, one thread.

    Args:
        fields: further fields of `llama_context_params`.
    """

    def __init__(self, path: Path, context: int = 1024, **fields: float) -> None:
        import llama_cpp.llama_cpp as api

        self._api = api
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            str(path).encode(), api.llama_model_default_params()
        )
        assert self._model, f"llama.cpp cannot load {path}"
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.type_k = params.type_v = api.GGML_TYPE_F32
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = 1
        for name, value in fields.items():
            setattr(params, name, value)
        self._context = api.llama_init_from_model(self._model, params)
        assert self._context
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def end_ids(self) -> list[int]:
        """Tokens that end generation."""
        vocab = self._api.llama_model_get_vocab(self._model)
        return [i for i in range(self._vocab_size) if self._api.llama_vocab_is_eog(vocab, i)]

    def greedy(self, prompt: Sequence[int], count: int, banned: Sequence[int] = ()) -> list[int]:
        """The `count` most likely next tokens that are not `banned`, one after the other; end
        tokens do not stop it.
        """
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        found: list[int] = []
        pending = list(prompt)
        for _ in range(count):
            tokens = (ctypes.c_int32 * len(pending))(*pending)
            assert (
                api.llama_decode(self._context, api.llama_batch_get_one(tokens, len(pending))) == 0
            )
            logits = self.logits()
            logits[list(banned)] = -np.inf
            pending = [int(np.argmax(logits))]
            found += pending
        return found

    def after(self, tokens: Sequence[int]) -> np.ndarray:
        """[vocab_size] float32: the logits after `tokens`, computed from scratch."""
        self.greedy(tokens, 1)
        return self.logits()

    def logits(self) -> np.ndarray:
        """[vocab_size] float32 after the last token decoded; a copy."""
        pointer = self._api.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, (self._vocab_size,)).copy()

    def vectors(self, tokens: Sequence[int], width: int) -> np.ndarray:
        """[len(tokens), width] float64: the vector of each token, computed from scratch; the model
        must have been made with `embeddings`.
        """
        array, api = (ctypes.c_int32 * len(tokens))(*tokens), self._api
        assert api.llama_decode(self._context, api.llama_batch_get_one(array, len(tokens))) == 0
        each = (api.llama_get_embeddings_ith(self._context, i) for i in range(len(tokens)))
        return np.array([np.ctypeslib.as_array(one, (width,)) for one in each], np.float64)

    def close(self) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def token_vectors(path: Path, tokens: Sequence[int], width: int) -> np.ndarray:
    """[len(tokens), width] float64: each token's own vector, up to 2,048 tokens."""
    raw = RawModel(path, 2048, n_ubatch=2048, embeddings=True, pooling_type=0)
    try:
        return raw.vectors(tokens, width)
    finally:
        raw.close()
