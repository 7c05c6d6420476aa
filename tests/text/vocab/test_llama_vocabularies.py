"""Tokenizers made from GGUF metadata agree with llama.cpp's, file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

import llama_tree
from guide_forms import guide_path
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.gguf_vocabulary import GgufVocabulary, Kind, read_vocabulary
from hearth.quant.gguf.reader import read_header
from random_texts import RandomTexts

PROSE = Path(__file__).parents[3].joinpath("assets", "texts", "guide.txt")
GUIDE = guide_path()
LOSSLESS = ("gpt2", "llama", "gemma4")
"""Kinds of vocabularies that keep every character."""
VOCABULARIES = [*llama_tree.files("ggml-vocab-*.gguf"), pytest.param(GUIDE, id="guide")]
ROUND_TRIPS = 10_000


@pytest.fixture(scope="module", params=VOCABULARIES)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def vocabulary(path: Path) -> GgufVocabulary:
    return read_vocabulary(read_header(path))


@pytest.fixture(scope="module")
def tokenizer(vocabulary: GgufVocabulary) -> GgufTokenizer:
    return GgufTokenizer(vocabulary)


def test_the_ids_are_those_of_the_vectors(path: Path, tokenizer: GgufTokenizer) -> None:
    cases = llama_tree.vectors(path)
    if not cases:
        pytest.skip("no vectors came with this vocabulary")
    assert len(cases) > 40
    for case in cases:
        assert tokenizer.encode(case.text, special=False, add_bos=False) == case.ids, case.text


def agree_on(texts: list[str], ours: GgufTokenizer, theirs: LlamaTokenizer) -> None:
    for text in texts:
        for special in (True, False):
            options = {"special": special, "add_bos": True, "add_eos": True}
            assert ours.encode(text, **options) == theirs.encode(text, **options), (special, text)


def test_everything_is_as_llama_cpp_has_it(
    path: Path, vocabulary: GgufVocabulary, tokenizer: GgufTokenizer
) -> None:
    marked = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
    specials = [
        text
        for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind in marked and text.isprintable()
    ]
    random = RandomTexts(1)
    prose = PROSE.read_text(encoding="utf-8")
    texts = [random.mixed(prose, specials) for _ in range(150)]
    with llama_tree.llama_tokenizer(path) as theirs:
        assert tokenizer.end_ids == theirs._model.facts.end_ids
        for name in ("vocab_size", "bos_text", "eos_text", "control_tokens", "infill_ids"):
            assert getattr(tokenizer, name) == getattr(theirs, name), name
        agree_on([prose, *texts], tokenizer, theirs)
        for text in texts[:20]:
            pair = text[:5], text[5:]
            assert tokenizer.encode_pair(*pair) == theirs.encode_pair(*pair)
        step = max(1, tokenizer.vocab_size // 5000)
        for ident in (*range(0, tokenizer.vocab_size, step), *tokenizer.end_ids):
            expected = theirs.piece(ident, special=True)
            # llama.cpp prints such a token, which nothing encodes to, with what it cannot decode.
            if b"[UNK_BYTE_" not in expected:
                assert tokenizer.piece(ident, special=True) == expected
                assert tokenizer.piece(ident) == theirs.piece(ident)


def test_any_text_comes_back(vocabulary: GgufVocabulary, tokenizer: GgufTokenizer) -> None:
    if vocabulary.model not in LOSSLESS:
        pytest.skip(f"a vocabulary of the kind {vocabulary.model!r} loses some characters")
    spelled = {tokenizer.piece(ident) for ident in range(tokenizer.vocab_size)}
    lost = [chr(byte) for byte in range(0x80) if bytes((byte,)) not in spelled]
    table = str.maketrans("", "", "".join(lost))
    begin = " " if vocabulary.adds_space else ""
    random = RandomTexts(2)
    for _ in range(ROUND_TRIPS // len(VOCABULARIES) + 1):
        text = random.characters().translate(table)
        if vocabulary.escapes_spaces:
            text = text.replace("▁", " ")  # SentencePiece takes one for the other.
        ids = tokenizer.encode(text, special=False, add_bos=False)
        assert tokenizer.decode(ids) == (begin if text else "") + text


def test_ten_thousand_random_strings_are_as_llama_cpp_has_them() -> None:
    tokenizer = GgufTokenizer(read_vocabulary(read_header(GUIDE)))
    random = RandomTexts(3)
    with llama_tree.llama_tokenizer(GUIDE) as theirs:
        for _ in range(ROUND_TRIPS):
            text = random.characters()
            ids = tokenizer.encode(text, special=False, add_bos=False)
            assert ids == theirs.encode(text, special=False, add_bos=False)
            assert tokenizer.decode(ids) == text
