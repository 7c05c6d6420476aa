"""Folders with a `tokenizer.json` give the ids of the libraries that they were made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hearth.backends.errors import CorruptFile, InvalidParameter, UnsupportedModel
from hearth.backends.text.vocab.json_tokenizer import JsonTokenizer
from hearth.backends.text.vocab.load import open_folder
from random_texts import RandomTexts
from tokenizer_folders import (
    KINDS,
    PROSE,
    SPECIALS,
    WRITTEN,
    byte_level,
    sentence_piece,
    write_folder,
)

CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {**CONFIG, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    place = tmp_path_factory.mktemp("folder")
    return write_folder(place, KINDS[request.param](), tokenizer_config=config)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> JsonTokenizer:
    return open_folder(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


def texts() -> list[str]:
    random = RandomTexts(5)
    prose = PROSE.read_text(encoding="utf-8")
    marked = ["<|im_start|>user\nhé <|im_end|>", "<tool>x</tool>", "", " ", "  two  "]
    return [*marked, *(random.mixed(prose, (*SPECIALS, *WRITTEN)) for _ in range(150))]


def test_rendered_text_gives_the_ids_of_transformers(
    tokenizer: JsonTokenizer, reference: PreTrainedTokenizerFast
) -> None:
    for text in texts():
        expected = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, special=True, add_bos=False) == expected, text
        expected = reference.encode(text, add_special_tokens=True)
        assert tokenizer.encode(text, special=True, add_bos=True, add_eos=True) == expected, text


def test_typed_text_holds_no_special_token(tokenizer: JsonTokenizer) -> None:
    forbidden = set(tokenizer.control_tokens.values()) - {tokenizer.control_tokens["<unk>"]}
    assert set(tokenizer.control_tokens) == {*SPECIALS, "<|fim_pad|>"}
    for text in (*texts(), *SPECIALS, "".join(SPECIALS), "</s>" * 2000):
        assert not forbidden & set(tokenizer.encode(text, special=False, add_bos=False)), text


def test_typed_text_without_specials_is_as_in_transformers(
    tokenizer: JsonTokenizer, reference: PreTrainedTokenizerFast
) -> None:
    for text in texts():
        if not any(mark in text for mark in (*SPECIALS, *WRITTEN)):
            expected = reference.encode(text, add_special_tokens=False)
            assert tokenizer.encode(text, special=False, add_bos=False) == expected, text


def test_pieces_joined_are_what_the_library_decodes(
    tokenizer: JsonTokenizer, reference: PreTrainedTokenizerFast
) -> None:
    text = "The model, and what it is; naïve?"
    ids = tokenizer.encode(text, special=False, add_bos=False)
    if tokenizer.control_tokens["<unk>"] in ids:
        pytest.skip("this vocabulary loses characters")
    decoded = reference.decode(ids, clean_up_tokenization_spaces=False)
    joined = tokenizer.decode(ids).strip()
    assert joined == decoded.strip() or joined.replace(" ", "") == decoded.replace(" ", "")


def test_special_tokens_have_the_names_that_transformers_gives_them(
    tokenizer: JsonTokenizer, reference: PreTrainedTokenizerFast
) -> None:
    others = {"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text}
    assert {**others, **tokenizer.named_tokens} == reference.special_tokens_map


def test_special_pieces_have_no_text_unless_asked(tokenizer: JsonTokenizer) -> None:
    end = tokenizer.control_tokens["<|im_end|>"]
    assert tokenizer.piece(end) == b""
    assert tokenizer.piece(end, special=True) == b"<|im_end|>"
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("<s>", "</s>")
    with pytest.raises(InvalidParameter, match="not in the vocabulary"):
        tokenizer.piece(tokenizer.vocab_size)


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> list[JsonTokenizer]:
    place = tmp_path_factory.mktemp("lossless")
    return [
        open_folder(write_folder(place / make.__name__, make()))
        for make in (byte_level, sentence_piece)
    ]


def test_any_text_comes_back(lossless: list[JsonTokenizer]) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40))
    def check(text: str) -> None:
        for tokenizer in lossless:
            ids = tokenizer.encode(text, special=False, add_bos=False)
            decoded = tokenizer.decode(ids, special=False)
            assert decoded.replace("<|fim_pad|>", "") in (text, " " + text)

    check()


def test_a_cut_character_becomes_a_replacement(lossless: list[JsonTokenizer]) -> None:
    for tokenizer in lossless:
        ids = tokenizer.encode("🎉", special=False, add_bos=False)
        assert tokenizer.decode(ids[:-1]).strip() == "\ufffd"
        assert b"".join(map(tokenizer.piece, ids)).strip() == "🎉".encode()


def test_a_lone_surrogate_is_refused(lossless: list[JsonTokenizer]) -> None:
    for tokenizer in lossless:
        with pytest.raises(InvalidParameter, match=r"U\+D83D\) stands at character 2"):
            tokenizer.encode("ab\ud83d", special=True, add_bos=False)


@pytest.mark.parametrize("adds_bos", [True, False, None])
@pytest.mark.parametrize("make", [sentence_piece, byte_level])
@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "LlamaTokenizerFast"])
def test_tokenizer_json_alone_says_whether_a_text_begins_with_bos(
    tmp_path: Path, kind: str, make: Callable[[], Tokenizer], adds_bos: bool | None
) -> None:
    """Whatever `tokenizer_config.json` says, as in transformers."""
    config = {**CONFIG, "tokenizer_class": kind}
    if adds_bos is not None:
        config["add_bos_token"] = config["add_eos_token"] = adds_bos
    folder = write_folder(tmp_path, make(), tokenizer_config=config)
    tokenizer = open_folder(folder)
    found = tokenizer.encode("a", special=True, add_bos=True, add_eos=True)
    assert (found[0] == tokenizer.control_tokens["<s>"]) is (make is sentence_piece)
    bare = tokenizer.encode("a", special=True, add_bos=False, add_eos=True)
    assert found[-len(bare) :] == bare
    assert found == AutoTokenizer.from_pretrained(folder)("a")["input_ids"]


def test_marks_of_harmony_have_a_text_and_cannot_be_typed(tmp_path: Path) -> None:
    """In gpt-oss's own file they are added tokens that are not special."""
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
    ends = ("<|return|>", "<|call|>")
    made = byte_level()
    made.add_tokens([AddedToken(text, normalized=False) for text in marks])
    made.add_special_tokens([AddedToken(text) for text in ends])
    tokenizer = open_folder(write_folder(tmp_path, made))
    text = "".join((*marks, *ends))
    ids = tokenizer.encode(text, special=True, add_bos=False)
    assert len(ids) == len(marks) + len(ends)
    assert tokenizer.decode(ids, special=False) == "".join(marks)
    assert not {*marks} & {*tokenizer.control_tokens}
    typed = tokenizer.encode(text, special=False, add_bos=False)
    assert not {*ids} & {*typed} and tokenizer.decode(typed) == text


def test_every_end_of_generation_token_is_known(tmp_path: Path) -> None:
    tokenizer = byte_level()
    ids = {text: tokenizer.token_to_id(text) for text in (*SPECIALS, *WRITTEN)}
    folder = write_folder(
        tmp_path,
        tokenizer,
        generation_config={"eos_token_id": [ids["<unk>"], 10**6]},
        config={"eos_token_id": ids["<|im_start|>"]},
    )
    ends = ("</s>", "<|im_end|>", "<|fim_pad|>", "<unk>", "<|im_start|>")
    assert open_folder(folder).end_ids == {ids[text] for text in ends}


def test_tokens_that_other_files_add_get_their_ids(tmp_path: Path) -> None:
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    config: dict[str, Any] = {
        **CONFIG,
        "added_tokens_decoder": {
            str(size + 1): {"content": "<b>", "special": True},
            str(size): {"content": "<a>", "special": False},
        },
    }
    folder = write_folder(tmp_path, tokenizer, tokenizer_config=config)
    found = open_folder(folder)
    assert found.encode("<a><b>", special=True, add_bos=False) == [size, size + 1]
    assert size + 1 not in found.encode("<b>", special=False, add_bos=False)
    (folder / "added_tokens.json").write_text(json.dumps({"<c>": 7}))
    with pytest.raises(CorruptFile, match="<c>"):
        open_folder(folder)


def test_ids_of_rows_that_no_token_names_stand_for_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    named = open_folder(folder).vocab_size
    tokenizer = open_folder(folder, rows=named + 50)
    assert tokenizer.vocab_size == named + 50 and open_folder(folder, rows=3).vocab_size == named
    (first,) = tokenizer.encode("a", special=False, add_bos=False)
    assert tokenizer.decode([first, named, named + 49, first]) == "aa"
    with pytest.raises(InvalidParameter, match="not in the vocabulary"):
        tokenizer.piece(named + 50)


def test_threads_may_tokenize_together(lossless: list[JsonTokenizer]) -> None:
    tokenizer = lossless[0]
    text = "<|im_start|>a model" * 20
    expected = {
        special: tokenizer.encode(text, special=special, add_bos=False) for special in (True, False)
    }

    def is_right(special: bool) -> bool:
        return all(
            tokenizer.encode(text, special=special, add_bos=False) == expected[special]
            for _ in range(50)
        )

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, [True, False, True, False]))
    assert expected[True] != expected[False]


@pytest.mark.parametrize("name", ["tokenizer.model", "tiktoken.model", "vocab.json"])
def test_a_folder_with_another_format_alone_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=name) as caught:
        open_folder(tmp_path)
    assert "save_pretrained" in caught.value.hint


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"no tokenizer\.json"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"model": {"type": "BPE"}}', b'{"model": 3}', b"\xff\xfe"],
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"tokenizer\.json"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
)
@pytest.mark.parametrize("content", ["[1]", "{", "3"])
def test_malformed_files_beside_it_are_refused_by_name(
    tmp_path: Path, name: str, content: str
) -> None:
    folder = write_folder(tmp_path, byte_level())
    (folder / name).write_text(content)
    with pytest.raises(CorruptFile, match=name.replace(".", r"\.")):
        open_folder(folder)
