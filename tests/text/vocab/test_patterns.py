"""Each way of cutting words that GGUF files name cuts as llama.cpp does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hearth.backends.errors import UnsupportedModel
from hearth.backends.text.vocab.load import open_gguf
from hearth.backends.text.vocab.patterns import TYPES, pre_type
from hearth.backends.text.vocab.words import WordCutter
from hearth.quant.gguf.reader import read_header
from llama_tree import llama_tokenizer
from vocabulary_files import SAMPLE, pairwise_bpe

PIECES = (
    *SAMPLE,
    *(
        "'s",
        "'LL",
        "'re",
        "  ",
        "   ",
        "\n\n",
        "12345678",
        "1234",
        "abC",
        "ABc",
        " !!",
        "$$",
        "/",
        "\n/",
    ),
    *(" a", " 1", "\t a", "\r\n", "<sentinel:7>", "IMGIMGABZ", "한국", "漢字かな", "，。", "a b c"),
)


def texts() -> list[str]:
    draw = random.Random(11)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 14))) for _ in range(400)]


@pytest.mark.parametrize("pre", TYPES)
def test_words_are_cut_as_llama_cpp_cuts_them(pre: str, tmp_path: Path) -> None:
    path = pairwise_bpe(tmp_path / "vocabulary.gguf", pre)
    tokenizer = open_gguf(read_header(path))
    with llama_tokenizer(path) as theirs:
        for text in texts():
            expected = theirs.encode(text, special=False, add_bos=False)
            assert tokenizer.encode(text, special=False, add_bos=False) == expected, text


@pytest.mark.parametrize("name", TYPES)
def test_words_joined_are_the_text(name: str) -> None:
    kind = pre_type(name)
    assert kind is not None
    cutter = WordCutter(kind.steps)
    for text in (*texts(), ""):
        words = cutter.cut(text)
        assert "".join(words) == text
        assert "" not in words


@pytest.mark.parametrize("name", TYPES)
def test_a_long_run_takes_linear_time(name: str) -> None:
    """A quadratic pattern would take minutes here, and the suite has a time limit."""
    kind = pre_type(name)
    assert kind is not None
    cutter = WordCutter(kind.steps)
    for char in "!x 7語\n'A\u0301":
        text = char * 100_000
        assert "".join(cutter.cut(text)) == text


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    path = pairwise_bpe(tmp_path / "vocabulary.gguf", "tomorrow")
    with pytest.raises(UnsupportedModel, match="tomorrow"):
        open_gguf(read_header(path))
