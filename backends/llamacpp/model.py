"""A GGUF model loaded by llama.cpp: weights, vocabulary, and the facts that the engine needs."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hearth.backends.errors import CorruptFile, DoesNotFit, HearthError, UnsupportedModel
from hearth.backends.llamacpp.lib import Library, load_library, set_fields
from hearth.quant.gguf.reader import read_header
from hearth.quant.memory_shape import ModelShape, shape_of

_NO_VOCABULARY = 0
_WORD_PIECE = 3
_NO_DECODER = "the llama.cpp backend only runs models that generate text."


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that llama.cpp reports about the loaded model."""

    parameters: int
    trained_context: int
    layers: int
    vocab_size: int
    end_ids: frozenset[int]
    """Every end-of-generation token: a model may have several."""
    bos_id: int | None
    adds_bos: bool
    closing_id: int | None
    """The token that `llama_tokenize` appends to a text with `add_special`, or None."""
    can_roll_back: bool
    """False for recurrent and hybrid memories, whose state cannot go back to earlier tokens."""
    sliding_window: int
    """0 without sliding-window attention."""


class LlamaModel:
    """Owns one `llama_model`. Make it with `open`; `close` frees it.

    Attributes:
        handle: the C pointer, for contexts; None once closed.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        path: Path,
        *,
        on_gpu: bool = False,
        shape: ModelShape | None = None,
    ) -> None:
        self.library = library
        self.path = path
        self.on_gpu = on_gpu
        """Whether some of its layers are on a GPU."""
        self._shape = shape
        self.handle: Any = handle
        self.vocab: Any = library.api.llama_model_get_vocab(handle)
        self.facts = self._read_facts()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        gpu_layers: int = 0,
        extra_buffers: bool = True,
        map_file: bool = True,
        shape: ModelShape | None = None,
    ) -> LlamaModel:
        """Load the model.

        Args:
            path: a GGUF file, the first of its parts if split.
            gpu_layers: layers to put on GPUs, -1 for all.
            extra_buffers: let llama.cpp repack weights (AMX, interleaved quants).
            map_file: let llama.cpp map the file if it considers that useful, so that the system can
                drop weights and read them again; otherwise they are read into allocated memory.
            shape: from the file's header (`shape_of`); None to read it when it is needed.

        Raises:
            CorruptFile: llama.cpp rejects the file.
            DoesNotFit: there is no memory for the weights.
            UnsupportedModel: this version does not know the architecture or the tokenizer, or the
                model does not generate text.
            BackendUnavailable: the library does not load.
        """
        library = load_library()
        api = library.api
        params = api.llama_model_default_params()
        set_fields(
            params,
            n_gpu_layers=gpu_layers,
            use_extra_bufts=extra_buffers,
            load_mode=api.LLAMA_LOAD_MODE_AUTO if map_file else api.LLAMA_LOAD_MODE_NONE,
            # llama.cpp's default callback writes dots into the log, in front of error messages.
            progress_callback=api.llama_progress_callback(lambda _share, _user_data: True),
        )
        library.log.clear()
        handle = api.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise _load_error(path, library.log.said())
        model = None
        try:
            _refuse_what_does_not_generate(api, handle, path)
            model = cls(library, handle, path, on_gpu=gpu_layers != 0, shape=shape)
        finally:
            if model is None:
                api.llama_model_free(handle)
        return model

    def metadata(self, key: str) -> str | None:
        """A scalar value of the file's metadata as llama.cpp prints it; None if absent."""
        api = self.library.api
        size = 1024
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = api.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.raw[:length].decode("utf-8", "replace")
            size = length + 1

    def close(self) -> None:
        """Free the weights. Close the model's contexts first. May be called twice."""
        handle, self.handle, self.vocab = self.handle, None, None
        if handle is not None:
            self.library.api.llama_model_free(handle)

    def _read_facts(self) -> ModelFacts:
        api, handle, vocab = self.library.api, self.handle, self.vocab
        size = int(api.llama_vocab_n_tokens(vocab))
        bos = int(api.llama_vocab_bos(vocab))
        is_recurrent = api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle)
        return ModelFacts(
            parameters=int(api.llama_model_n_params(handle)),
            trained_context=int(api.llama_model_n_ctx_train(handle)),
            layers=int(api.llama_model_n_layer(handle)),
            vocab_size=size,
            end_ids=frozenset(i for i in range(size) if api.llama_vocab_is_eog(vocab, i)),
            bos_id=bos if 0 <= bos < size else None,
            adds_bos=bool(api.llama_vocab_get_add_bos(vocab)),
            closing_id=_closing_id(api, vocab),
            can_roll_back=not is_recurrent,
            sliding_window=int(api.llama_model_n_swa(handle)),
        )

    @functools.cached_property
    def shape(self) -> ModelShape:
        """The shape of the model, for the memory of graphs. Not for files with only a vocabulary.

        Raises:
            CorruptFile: the file does not declare it.
        """
        return self._shape or shape_of(read_header(self.path))


def _closing_id(api: Any, vocab: Any) -> int | None:
    """The token that ends a text in `llama_vocab::impl::tokenize`.

    Word-piece vocabularies end a text with the separator.
    """
    if api.llama_vocab_type(vocab) == _WORD_PIECE:
        closing = int(api.llama_vocab_sep(vocab))
    elif api.llama_vocab_get_add_eos(vocab):
        closing = int(api.llama_vocab_eos(vocab))
    else:
        return None
    return closing if closing >= 0 else None


def _refuse_what_does_not_generate(api: Any, handle: Any, path: Path) -> None:
    name = path.name
    if api.llama_model_has_encoder(handle):
        raise UnsupportedModel(f"{name} has an encoder; {_NO_DECODER}")
    if not api.llama_model_has_decoder(handle):
        raise UnsupportedModel(f"{name} has no decoder; {_NO_DECODER}")
    if api.llama_model_is_diffusion(handle):
        raise UnsupportedModel(f"{name} is a diffusion model; {_NO_DECODER}")
    # llama_tokenize aborts the process on a model without a vocabulary.
    if api.llama_vocab_type(api.llama_model_get_vocab(handle)) == _NO_VOCABULARY:
        raise UnsupportedModel(f"{name} holds no vocabulary, so text cannot become tokens.")


def _load_error(path: Path, said: str) -> HearthError:
    """The error for the message that llama.cpp logged when it failed to load `path`."""
    lowered = said.lower()
    reason = f"llama.cpp cannot load {path.name}: {said or 'it gave no reason'}"
    if "unknown model architecture" in lowered or "unknown pre-tokenizer" in lowered:
        return UnsupportedModel(reason, "A newer llama-cpp-python may know this model.")
    if "cannot be used as main model" in lowered:
        return UnsupportedModel(reason, "Choose the language model file, not its projector.")
    if "alloc" in lowered or "out of memory" in lowered:
        return DoesNotFit(reason, "Use a smaller quantization, or fewer gpu_layers (--gpu-layers).")
    return CorruptFile(reason)
