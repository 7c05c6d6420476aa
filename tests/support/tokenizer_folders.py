"""Small folders with a `tokenizer.json` of each kind, trained on the guide's text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

PROSE = Path(__file__).parents[2].joinpath("assets", "texts", "guide.txt")
SPECIALS = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
WRITTEN = ("<tool>", "<|fim_pad|>")
"""Added tokens that are not special."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _finish(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator(PROSE.read_text(encoding="utf-8").splitlines(), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in WRITTEN])
    return tokenizer


def byte_level() -> Tokenizer:
    """Like the tokenizers of Qwen and Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(SPECIALS), initial_alphabet=alphabet
    )
    return _finish(tokenizer, trainer)


def sentence_piece() -> Tokenizer:
    """Like those of Llama 2 and Mistral: ▁ for spaces, bytes for unknown text, <s> in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=list(SPECIALS))
    _finish(tokenizer, trainer)
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    state["added_tokens"] = state["added_tokens"][: len(SPECIALS)]
    vocabulary.update({text: len(vocabulary) + byte for byte, text in enumerate(_BYTES)})
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in WRITTEN])
    return _with_bos(tokenizer)


def unigram() -> Tokenizer:
    """Like those of T5 and XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=list(SPECIALS), unk_token="<unk>"
    )
    return _finish(tokenizer, trainer)


def word_piece() -> Tokenizer:
    """Like that of BERT, with a token at both ends."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=list(SPECIALS))
    _finish(tokenizer, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "sentence piece": sentence_piece,
    "unigram": unigram,
    "word piece": word_piece,
}


def write_folder(folder: Path, tokenizer: Tokenizer, **files: dict[str, Any]) -> Path:
    """Write `tokenizer.json` and further files: `tokenizer_config={...}` becomes
    `tokenizer_config.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for name, content in {"tokenizer_config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
