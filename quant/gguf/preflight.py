"""The check that a GGUF model must pass before llama.cpp loads it.

Faults for which llama.cpp reports an error may pass; faults that would cause a failed assertion or
an invalid read may not.
"""

from __future__ import annotations

from pathlib import Path

from hearth.quant.gguf.assertions import check_assertions
from hearth.quant.gguf.families import check_family
from hearth.quant.gguf.faults import corrupt, quoted, unsupported
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.hparams import read_hyper_parameters
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.shards import with_shards
from hearth.quant.gguf.vocabulary import check_vocabulary

_NOT_MODELS = {
    "adapter": "is a LoRA adapter, not a model",
    "imatrix": "is an importance matrix, not a model",
    "mmproj": "is a vision or audio projector, not a language model",
}
_NOT_LANGUAGE = {
    "clip": _NOT_MODELS["mmproj"],
    "wavtokenizer-dec": "is an audio decoder, not a language model",
}


def check(path: str | Path) -> GgufFile:
    """The checked header of the model at `path`, with its other shards.

    Structure, hyper-parameters and tokenizer are checked for all architectures; for architectures
    of the llama family (`families.FAMILIES`), also the presence, shape and type of every tensor.

    Raises:
        CorruptFile: `field` in `data` names the offending field, `path` the file.
        UnsupportedModel: the file is well formed, but not a loadable language model.
        OSError: the file cannot be opened.
    """
    return check_model(with_shards(read_header(path)))


def check_model(file: GgufFile) -> GgufFile:
    """Check `file`, a header with its shards, and return it.

    Raises:
        CorruptFile, UnsupportedModel: as in `check`.
    """
    kind = file.value("general.type", "model")
    if kind in _NOT_MODELS:
        raise unsupported(
            file.path, "key 'general.type'", _NOT_MODELS[kind], "Choose the model's own file."
        )
    if file.architecture in _NOT_LANGUAGE:
        raise unsupported(
            file.path,
            "key 'general.architecture'",
            _NOT_LANGUAGE[file.architecture],
            "Choose the model's own file.",
        )
    for part in (file, *file.shards):
        _check_packing(part)
    vocabulary = check_vocabulary(file)
    if not file.all_tensors:
        raise unsupported(
            file.path,
            "header tensor count",
            "holds a vocabulary only, no weights",
            "Download the model's full GGUF file.",
        )
    params = read_hyper_parameters(file)
    check_assertions(file, params)
    check_family(file, params, vocabulary)
    return file


def _check_packing(file: GgufFile) -> None:
    """Check that tensors follow each other in the order of the list with only padding in between,
    as ggml requires.
    """
    expected = 0
    for tensor in file.tensors:
        if tensor.offset != expected:
            raise corrupt(
                file.path,
                f"tensor {quoted(tensor.name)} offset",
                f"{tensor.offset:,}, expected {expected:,} right after the tensor before it",
            )
        expected += -(-tensor.nbytes // file.alignment) * file.alignment
