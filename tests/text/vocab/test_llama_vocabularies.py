"""Tokenizers made from GGUF metadata agree with llama.cpp's, file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

import llama_tree
from guide_forms import guide_path
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.gguf_vocabulary import (
    SENTENCE_PIECE,
    GgufVocabulary,
    read_vocabulary,
)
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import TokenKind
from random_texts import RandomTexts

PROSE = Path(__file__).parents[3].joinpath("assets", "texts", "guide.txt")
GUIDE = guide_path()
OTHERS = ("bert-bge", "nomic-bert-moe", "gemma-4")
"""Kinds of vocabularies of which the native runner knows no model."""
FILES = llama_tree.files("ggml-vocab-*.gguf")
VOCABULARIES = [
    *(one for one in FILES if not str(one.id).startswith(OTHERS)),
    pytest.param(GUIDE, id="guide"),
]
FEW, MANY = 500, 10_000


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
    marked = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
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
        for name in (
            *("vocab_size", "bos_text", "eos_text", "named_tokens", "control_tokens"),
            "infill_ids",
        ):
            assert getattr(tokenizer, name) == getattr(theirs, name), name
        agree_on([prose, *texts], tokenizer, theirs)
        step = max(1, tokenizer.vocab_size // 5000)
        for ident in (*range(0, tokenizer.vocab_size, step), *tokenizer.end_ids):
            expected = theirs.piece(ident, special=True)
            # llama.cpp prints such a token, which nothing encodes to, with what it cannot decode.
            if b"[UNK_BYTE_" not in expected:
                assert tokenizer.piece(ident, special=True) == expected
                assert tokenizer.piece(ident) == theirs.piece(ident)


def returned(vocabulary: GgufVocabulary, text: str) -> str:
    """What `text` is once encoded and decoded: itself, from byte-level BPE.

    SentencePiece writes a space as ▁ and so takes one for the other, and where the vocabulary says
    so it puts a space in front.
    """
    if vocabulary.model == SENTENCE_PIECE:
        text = text.replace("▁", " ")
    return f" {text}" if text and vocabulary.adds_space else text


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_any_text_comes_back(
    vocabulary: GgufVocabulary, tokenizer: GgufTokenizer, count: int
) -> None:
    pieces = {tokenizer.piece(ident) for ident in range(tokenizer.vocab_size)}
    # Some have no token for bytes that their training text never had: in UTF-8 those of a few
    # control characters (Falcon), and of planes in which nothing is assigned.
    missing = {byte for byte in range(256) if bytes((byte,)) not in pieces}
    random = RandomTexts(2)
    for number in range(count):
        drawn = random.code_points() if number % 2 else random.characters()
        text = "".join(char for char in drawn if missing.isdisjoint(char.encode()))
        ids = tokenizer.encode(text, special=False, add_bos=False)
        assert tokenizer.decode(ids) == returned(vocabulary, text)


@pytest.mark.slow
def test_ten_thousand_random_strings_are_as_llama_cpp_has_them(
    path: Path, tokenizer: GgufTokenizer
) -> None:
    """Where a text does not come back, both make the same of it."""
    pytest.importorskip("llama_cpp")
    random = RandomTexts(3)
    prose = PROSE.read_text(encoding="utf-8")
    with llama_tree.llama_tokenizer(path) as theirs:
        for number in range(MANY):
            text = random.mixed(prose, ()) if number % 2 else random.characters()
            ids = tokenizer.encode(text, special=False, add_bos=False)
            assert ids == theirs.encode(text, special=False, add_bos=False), text
            assert tokenizer.decode(ids) == theirs.decode(ids), text


def test_ten_thousand_random_strings_of_the_guide() -> None:
    tokenizer = GgufTokenizer(read_vocabulary(read_header(GUIDE)))
    random = RandomTexts(3)
    with llama_tree.llama_tokenizer(GUIDE) as theirs:
        for _ in range(MANY):
            text = random.characters()
            ids = tokenizer.encode(text, special=False, add_bos=False)
            assert ids == theirs.encode(text, special=False, add_bos=False)
            assert tokenizer.decode(ids) == text
