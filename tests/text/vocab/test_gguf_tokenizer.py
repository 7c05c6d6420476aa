"""Small GGUF vocabularies: as llama.cpp has them, and safe where it is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_builder import byte_alphabet, tiny_llama, tiny_vocabulary
from hearth.backends.errors import InvalidParameter, UnsupportedModel
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.load import open_gguf
from hearth.quant.gguf.reader import read_header
from llama_tree import llama_tokenizer
from random_texts import RandomTexts
from vocabulary_files import write_vocabulary

NORMAL, UNKNOWN, CONTROL, WRITTEN, UNUSED, BYTE = (int(kind) for kind in gguf.TokenType)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = (
    "▁",
    "▁a",
    "▁the",
    "th",
    "e",
    "t",
    "h",
    "a",
    "b",
    "ab",
    "▁ab",
    "<",
    "s",
    ">",
    "<s",
    "</",
    "é",
)
SCORES = {"▁the": -1.0, "th": -2.0, "▁a": -3.0, "ab": -2.5, "▁ab": -2.25, "<s": -4.0}


def opened(path: Path) -> GgufTokenizer:
    return open_gguf(read_header(path))


def sentence_piece(path: Path, *, raw: int | None = None, **extra: Any) -> Path:
    """`raw`: tokens of bytes from 0x80 on have this kind and hold the byte itself."""
    spelled = BYTES if raw is None else BYTES[:128] + [bytes((byte,)) for byte in range(128, 256)]
    tokens = ["<unk>", "<s>", "</s>", *spelled, *WORDS, "<turn>", "[tag]", "<|endoftext|>"]
    kinds = [NORMAL] * len(WORDS)
    of_bytes = [BYTE] * 128 + [BYTE if raw is None else raw] * 128
    types = [UNKNOWN, CONTROL, CONTROL, *of_bytes, *kinds, CONTROL, WRITTEN, CONTROL]
    scores = [SCORES.get(token, -9.0) for token in tokens]
    return write_vocabulary(path, "llama", tokens, types=types, scores=scores, **extra)


FILES: dict[str, dict[str, Any]] = {
    "sentence piece": {},
    "without a space in front": {"add_space_prefix": False},
    "without bos": {"add_bos_token": False, "add_eos_token": True},
    "phi 3": {"name": "Phi-3 mini"},
    "raw bytes": {"raw": NORMAL},
    "filled in": {"fim_pre_token_id": 3, "fim_suf_token_id": 4},
    "filled in by old keys": {
        "prefix_token_id": 3,
        "suffix_token_id": 4,
        "middle_token_id": 5,
        "eot_token_id": 276,
    },
}
PIECES = (
    "the",
    " ",
    "a",
    "ab",
    "cats",
    "Cat!",
    "<s>",
    "</s>",
    "<turn>",
    "[tag]",
    "\n",
    "é",
    "語",
    "🎉",
)


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_is_as_llama_cpp_has_it(kind: str, tmp_path: Path) -> None:
    path = sentence_piece(tmp_path / "vocabulary.gguf", **FILES[kind])
    tokenizer = opened(path)
    random = RandomTexts(4)
    with llama_tokenizer(path) as theirs:
        assert tokenizer.end_ids == theirs._model.facts.end_ids
        for name in (
            *("vocab_size", "bos_text", "eos_text", "named_tokens", "control_tokens"),
            "infill_ids",
        ):
            assert getattr(tokenizer, name) == getattr(theirs, name), name
        for ident in range(tokenizer.vocab_size):
            for special in (True, False):
                expected = theirs.piece(ident, special=special)
                assert tokenizer.piece(ident, special=special) == expected, ident
        for text in ("", *(random.mixed("the cats ab", PIECES) for _ in range(200))):
            options: dict[str, Any] = {"special": True, "add_bos": True, "add_eos": True}
            assert tokenizer.encode(text, **options) == theirs.encode(text, **options), text


def test_raw_bytes_may_be_of_the_kind_of_bytes(tmp_path: Path) -> None:
    tokenizer = opened(sentence_piece(tmp_path / "vocabulary.gguf", raw=BYTE))
    ids = tokenizer.encode("語\n", special=False, add_bos=False)
    assert tokenizer.decode(ids) == " 語\n"


def test_special_tokens_have_the_names_that_the_file_gives_them(tmp_path: Path) -> None:
    assert opened(sentence_piece(tmp_path / "a.gguf")).named_tokens == {}
    given = {"padding_token_id": 2, "unknown_token_id": 0, "mask_token_id": 10_000}
    found = opened(sentence_piece(tmp_path / "b.gguf", **given)).named_tokens
    assert found == {"pad_token": "</s>", "unk_token": "<unk>"}


def test_typed_text_never_becomes_a_control_token(tmp_path: Path) -> None:
    """llama.cpp merges "<s" and ">" to the token that begins a text."""
    tokenizer = opened(sentence_piece(tmp_path / "vocabulary.gguf"))
    control = set(tokenizer.control_tokens.values())
    for text in ("<s>", "</s>", "a<turn>b</s>", "<<s>s>"):
        ids = tokenizer.encode(text, special=False, add_bos=False)
        assert not control & set(ids), text
        assert tokenizer.decode(ids) == f" {text}"


def test_marks_of_harmony_have_a_text_and_cannot_be_typed(tmp_path: Path) -> None:
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
    tokens = [*byte_alphabet(), *marks, "ab"]
    types = [NORMAL] * 256 + [CONTROL] * len(marks) + [NORMAL]
    path = write_vocabulary(
        tmp_path / "v.gguf",
        "gpt2",
        tokens,
        types=types,
        merges=["a b"],
        pre="gpt-4o",
        eos_token_id=260,
    )
    tokenizer = opened(path)
    assert tokenizer.end_ids == {260, 261}
    assert tokenizer.piece(257) == b"<|channel|>" and tokenizer.piece(260) == b""
    text = "".join(marks)
    assert tokenizer.encode(text, special=True, add_bos=False) == list(range(256, 262))
    assert max(tokenizer.encode(text, special=False, add_bos=False)) < 256
    with llama_tokenizer(path) as theirs:
        assert tokenizer.end_ids == theirs._model.facts.end_ids
        assert tokenizer.control_tokens == theirs.control_tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GgufTokenizer:
    return opened(tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", vocab=320))


def test_any_text_comes_back(tiny: GgufTokenizer) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    def check(text: str) -> None:
        ids = tiny.encode(text, special=False, add_bos=True)
        assert tiny.decode(ids) == text

    check()


def test_special_tokens_in_typed_text_are_plain_text(tiny: GgufTokenizer) -> None:
    end = tiny_vocabulary().id_of("<|end|>")
    assert end in tiny.encode("a<|end|>", special=True, add_bos=False)
    assert end not in tiny.encode("a<|end|>", special=False, add_bos=False)
    assert tiny.piece(end) == b"" and tiny.piece(end, special=True) == b"<|end|>"
    assert tiny.decode([end], special=False) == ""


def test_a_cut_character_becomes_a_replacement(tiny: GgufTokenizer) -> None:
    ids = tiny.encode("🎉", special=False, add_bos=False)
    assert tiny.decode(ids[:3]) == "\ufffd"


def test_bad_input_is_refused(tiny: GgufTokenizer) -> None:
    with pytest.raises(InvalidParameter, match=r"U\+D83D\) stands at character 2"):
        tiny.encode("ab\ud83d", special=False, add_bos=False)
    for ident in (-1, tiny.vocab_size):
        with pytest.raises(InvalidParameter, match="not in the vocabulary"):
            tiny.piece(ident)


def test_a_long_word_takes_no_quadratic_time(tiny: GgufTokenizer) -> None:
    for char in "x 語!":
        text = char * 100_000
        ids = tiny.encode(text, special=True, add_bos=False)
        assert tiny.decode(ids) == text


def test_threads_may_tokenize_together(tiny: GgufTokenizer) -> None:
    encode = partial(tiny.encode, special=False, add_bos=False)
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(encode, ["hello the and in " * 50] * 4)
    assert all(ids == first for ids in others)


@pytest.mark.parametrize("model", ["rwkv", "bert", "t5", "gemma4", "none"])
def test_a_kind_that_is_not_built_in_is_refused_by_name(model: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=model) as caught:
        opened(write_vocabulary(tmp_path / "v.gguf", model, ["a"]))
    assert "llamacpp" in caught.value.hint
