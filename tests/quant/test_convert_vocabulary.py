"""Vocabularies of folders converted to GGUF: text becomes the same tokens with both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from converting import converted, planned_of
from gguf_builder import byte_alphabet, tiny_vocabulary
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.load import open_folder, open_gguf
from hearth.quant.convert.pre_types import pre_type
from hearth.quant.convert.tokenizer_file import read_tokenizer
from hearth.quant.convert.vocabulary import TokenKind, read_vocabulary
from hearth.quant.errors import HearthError
from hearth.quant.gguf.preflight import check
from llama_tree import files
from random_texts import RandomTexts
from tiny_checkpoints import VOCABULARY, tiny_checkpoint
from tiny_folders import (
    MARK,
    QWEN2_EXPRESSION,
    add_vocabulary,
    byte_level,
    change_json,
    scored,
    tiny_folder,
    write_json,
)

SPECIALS = {"<unk>": 0, "<s>": 1, "</s>": 2}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [MARK, *"etaoinshr"]
PIECES = [f"{MARK}t", "he", f"{MARK}the", "in", "er", "an", f"{MARK}a", "re", "on", "at"]
PIECES = [*PIECES, "ther", f"{MARK}in", "at", "her", MARK * 2, MARK * 4]
PROSE = "the rain is on another train, there  it is\n\n in    the heath"


def texts(count: int, specials: Sequence[str] = ()) -> list[str]:
    random = RandomTexts(1)
    return [PROSE, "", " ", *(random.mixed(PROSE, specials) for _ in range(count))]


def both(folder: Path, target: Path) -> tuple[Any, GgufTokenizer]:
    """The tokenizers of a folder and of the file that is made from it."""
    return open_folder(folder), open_gguf(check(converted(folder, target)))


def scored_pieces() -> list[str]:
    pieces = [*SPECIALS, *BYTES, *LETTERS]
    return [*pieces, *(piece for piece in dict.fromkeys(PIECES) if piece not in pieces)]


@pytest.fixture
def spm(tmp_path: Path) -> Path:
    """A folder with a SentencePiece vocabulary."""
    folder = tiny_checkpoint("llama2", tmp_path / "spm")
    write_json(folder / "tokenizer.json", scored(scored_pieces(), SPECIALS))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    write_json(folder / "tokenizer_config.json", config)
    return folder


def test_words_become_the_same_tokens(tmp_path: Path) -> None:
    folder = tiny_folder("qwen2", tmp_path / "tiny")
    ours, theirs = both(folder, tmp_path / "tiny.gguf")
    for text in texts(200, ["<|user|>", "<|end|>"]):
        for special in (True, False):
            expected = ours.encode(text, special=special, add_bos=True)
            assert theirs.encode(text, special=special, add_bos=True) == expected, text
    assert theirs.end_ids == ours.end_ids


@pytest.mark.parametrize("scheme", ["prepend", "always", "never"])
def test_scored_pieces_become_the_same_tokens(spm: Path, tmp_path: Path, scheme: str) -> None:
    values = scored(scored_pieces(), SPECIALS, scheme=scheme)
    write_json(spm / "tokenizer.json", values)
    ours, theirs = both(spm, tmp_path / "spm.gguf")
    for text in texts(200):
        if scheme == "always" and text.startswith(" "):
            continue  # Metaspace puts no second space in front, but llama.cpp does.
        expected = ours.encode(text, special=False, add_bos=True)
        assert theirs.encode(text, special=False, add_bos=True) == expected, text
        assert theirs.decode(expected) == ours.decode(expected)
    assert theirs.end_ids == ours.end_ids == {2}


def test_a_space_at_the_first_start_alone(spm: Path, tmp_path: Path) -> None:
    write_json(spm / "tokenizer.json", scored(scored_pieces(), SPECIALS, scheme="first"))
    ours, theirs = both(spm, tmp_path / "base.gguf")
    expected = ours.encode(PROSE, special=True, add_bos=False)
    assert theirs.encode(PROSE, special=True, add_bos=False) == expected
    (spm / "chat_template.jinja").write_text("{{ messages }}")
    ours, theirs = both(spm, tmp_path / "chat.gguf")
    asked = f"<s>{PROSE}</s>{PROSE}"
    expected = ours.encode(asked, special=True, add_bos=False)
    assert theirs.encode(asked, special=True, add_bos=False) == expected


@pytest.mark.parametrize("vocabulary", files("ggml-vocab-llama-spm.gguf"))
def test_the_vocabulary_of_llama_2(vocabulary: Path, tmp_path: Path) -> None:
    original = check_vocabulary_of(vocabulary)
    order = sorted(range(len(original.tokens)), key=lambda ident: -original.scores[ident])
    values = scored(original.tokens, SPECIALS)
    ids = values["model"]["vocab"]
    kept = {text for text in original.tokens if text not in SPECIALS and text not in BYTES}
    values["model"]["merges"] = [
        [piece[:cut], piece[cut:]]
        for piece in (original.tokens[ident] for ident in order)
        if piece in kept
        for cut in range(1, len(piece))
        if piece[:cut] in kept and piece[cut:] in kept
    ]
    values["post_processor"] = puts_before("<s>", original.tokens.index("<s>"))
    folder = tiny_checkpoint("llama2", tmp_path / "tiny", vocab_size=len(ids), hidden_size=16)
    write_json(folder / "tokenizer.json", values)
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    write_json(folder / "tokenizer_config.json", names)
    ours, theirs = both(folder, tmp_path / "tiny.gguf")
    reference = GgufTokenizer(original)
    for text in texts(100):
        expected = reference.encode(text, special=False, add_bos=True)
        assert ours.encode(text, special=False, add_bos=True) == expected, text
        assert theirs.encode(text, special=False, add_bos=True) == expected, text


def check_vocabulary_of(path: Path) -> Any:
    from hearth.backends.text.vocab.gguf_vocabulary import read_vocabulary as read_gguf_vocabulary
    from hearth.quant.gguf.reader import read_header

    return read_gguf_vocabulary(read_header(path))


GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPELLED = GPT2 | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2_EXPRESSION.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def cased(endings: str, numbers: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{UPPER}*{LOWER}+{endings}|{lead}{UPPER}+{LOWER}*{endings}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BREAKS}"
    )


def cut(expression: str, behavior: str = "Isolated") -> dict[str, Any]:
    pattern = {"Regex": expression}
    invert = behavior == "Removed"
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


@pytest.mark.parametrize(
    ("steps", "ignore_merges", "name"),
    [
        ([cut(QWEN2_EXPRESSION), SPELLED], False, "qwen2"),
        ([cut(QWEN2_EXPRESSION, "Removed"), SPELLED], False, "qwen2"),
        ([cut(LLAMA3), SPELLED], True, "llama-bpe"),
        ([cut(LLAMA3, "Removed"), SPELLED], False, "dbrx"),
        ([cut(cased(f"{ENDINGS}?", r"\p{N}{1,3}")), SPELLED], True, "gpt-4o"),
        ([cut(cased("", r"\p{N}")), SPELLED], True, "tekken"),
        ([GPT2], False, "gpt-2"),
        ([DIGITS, GPT2], False, "smollm"),
    ],
)
def test_ways_to_cut_words_have_names(
    steps: list[dict[str, Any]], ignore_merges: bool, name: str, tmp_path: Path
) -> None:
    values = byte_level(byte_alphabet(), [], ignore_merges=ignore_merges)
    values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    values["normalizer"] = {"type": "NFC"}
    write_json(tmp_path / "tokenizer.json", values)
    assert pre_type(read_tokenizer(tmp_path)) == name


def test_tokens_have_types(tmp_path: Path) -> None:
    words = tiny_vocabulary()
    values = byte_level(words.tokens, words.merges, ["<|end|>"])
    values["added_tokens"].append({"id": 270, "content": "<tool>", "special": False})
    write_json(tmp_path / "tokenizer.json", values)
    decoder = {
        "271": {"content": "<extra>", "special": True},
        "274": {"content": "<image>", "special": True},
    }
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    found = read_vocabulary(tmp_path, 274)
    kinds = dict(zip(found.tokens, found.kinds, strict=True))
    assert found.tokens[-2:] == ["[PAD272]", "[PAD273]"] and found.merges == words.merges
    assert kinds["hello"] is TokenKind.NORMAL and kinds["<|end|>"] is TokenKind.CONTROL
    assert kinds["<tool>"] is TokenKind.USER_DEFINED and kinds["<extra>"] is TokenKind.CONTROL
    assert kinds["[PAD272]"] is TokenKind.UNUSED
    assert found.id_of("<image>") is None, "it has no row"


def test_scored_tokens_have_types(tmp_path: Path) -> None:
    values = scored(scored_pieces(), SPECIALS)
    added = [MARK * 2, "\n\n"]
    size = len(scored_pieces())
    values["added_tokens"] += [
        {"id": values["model"]["vocab"].get(text, size), "content": text, "special": False}
        for text in added
    ]
    write_json(tmp_path / "tokenizer.json", values)
    found = read_vocabulary(tmp_path, size + 1)
    kinds = dict(zip(found.tokens, found.kinds, strict=True))
    assert kinds["<unk>"] is TokenKind.UNKNOWN and kinds["<s>"] is TokenKind.CONTROL
    assert kinds["<0x0A>"] is TokenKind.BYTE and kinds["\n\n"] is TokenKind.USER_DEFINED
    assert kinds[MARK * 2] is TokenKind.NORMAL
    scores = dict(zip(found.tokens, found.scores, strict=True))
    assert scores[f"{MARK}t"] > scores["he"] > scores[f"{MARK}the"] > scores["e"]


def test_ends_template_and_defaults(tmp_path: Path) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    words = tiny_vocabulary()
    user, system = words.id_of("<|user|>"), words.id_of("<|system|>")
    change_json(folder / "generation_config.json", eos_token_id=[user, system], do_sample=False)
    named = [{"name": "default", "template": "{{ 1 }}"}, {"name": "tools", "template": "{{ 2 }}"}]
    change_json(folder / "tokenizer_config.json", chat_template=named, bos_token="<|system|>")
    header = planned_of(folder).source.header
    value = header.value
    assert value("tokenizer.ggml.eos_token_id") == words.id_of("<|end|>")
    assert value("tokenizer.ggml.eot_token_id") == user
    assert value("tokenizer.ggml.bos_token_id") == value("tokenizer.ggml.eom_token_id") == system
    assert value("tokenizer.ggml.add_bos_token") is False
    assert value("general.sampling.temp") == 0.0 and value("general.sampling.top_k") == 20
    assert header.chat_template == "{{ 1 }}"
    assert value("tokenizer.chat_template.tools") == "{{ 2 }}"
    assert list(value("tokenizer.chat_templates")) == ["tools"]


def puts_before(name: str, ident: int) -> dict[str, Any]:
    """A post-processor of tokenizer.json that puts a token before each text."""
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": name, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {name: {"id": name, "ids": [ident], "tokens": [name]}},
    }


def test_what_stands_before_a_text(tmp_path: Path) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    system = tiny_vocabulary().id_of("<|system|>")
    change_json(folder / "tokenizer.json", post_processor=puts_before("<|system|>", system))
    ours, theirs = both(folder, tmp_path / "tiny.gguf")
    assert ours.encode("hello", special=True, add_bos=True)[0] == system
    assert theirs.encode("hello", special=True, add_bos=True)[0] == system


@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.parametrize("puts", [True, False])
def test_tokenizer_json_alone_says_what_stands_around_a_text(
    says: bool | None, puts: bool, tmp_path: Path
) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    words = tiny_vocabulary()
    names = ("<|system|>", "<|user|>")
    before, behind = ({"SpecialToken": {"id": name, "type_id": 0}} for name in names)
    template = {
        "type": "TemplateProcessing",
        "single": [before, {"Sequence": {"id": "A", "type_id": 0}}, behind],
        "pair": [],
        "special_tokens": {
            name: {"id": name, "ids": [words.id_of(name)], "tokens": [name]} for name in names
        },
    }
    change_json(folder / "tokenizer.json", post_processor=template if puts else None)
    said = {} if says is None else {"add_bos_token": says, "add_eos_token": says}
    change_json(folder / "tokenizer_config.json", bos_token="<|system|>", **said)
    value = planned_of(folder).source.header.value
    assert value("tokenizer.ggml.add_bos_token") is value("tokenizer.ggml.add_eos_token") is puts
    ours, theirs = both(folder, tmp_path / "tiny.gguf")
    around: dict[str, Any] = {"special": True, "add_bos": True, "add_eos": True}
    assert ours.encode("hello", **around) == theirs.encode("hello", **around)
    assert theirs.end_ids >= ours.end_ids == {words.id_of("<|end|>")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, r"model.type.*Unigram.*BPE"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, r"model.type.*WordPiece"),
        ({"model": {"type": "BPE", "vocab": {}}}, r"model.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 1.5}}}, r"vocab.*'a' has no id"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}, r"two tokens"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, r"merges\[0\].*'b'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, r"merges\[0\] is no pair"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "byte_fallback"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [3]}}, "pretokenizers"),
        ({"normalizer": {"type": "Lowercase"}}, r"normalizer.type.*Lowercase.*NFC"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut(r"\S+"), SPELLED]}},
            r"words are cut with '.{1,4}S\+', which is none of the ways .*qwen2",
        ),
        ({"post_processor": {"type": "BertProcessing"}}, r"post_processor.type"),
        (
            {"model": {"type": "BPE", "vocab": {"<far>": 5000}, "merges": []}},
            r"'<far>' is token 5,000.*300 tokens",
        ),
    ],
)
def test_vocabularies_that_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    add_vocabulary(tmp_path)
    change_json(tmp_path / "tokenizer.json", **changes)
    with pytest.raises(HearthError, match=message) as raised:
        read_vocabulary(tmp_path, VOCABULARY)
    assert "tokenizer.json" in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}, "NFKC"),
        ({"normalizer": None}, "spaces are not written as"),
        (
            {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": MARK}},
            r"pre_tokenizer.split",
        ),
    ],
)
def test_scored_vocabularies_that_are_refused(
    spm: Path, changes: dict[str, Any], message: str
) -> None:
    change_json(spm / "tokenizer.json", **changes)
    with pytest.raises(HearthError, match=message):
        read_vocabulary(spm, 1000)


def test_merges_that_scores_cannot_say(spm: Path) -> None:
    values = scored(scored_pieces(), SPECIALS)
    values["model"]["merges"].remove(f"{MARK}t he")
    write_json(spm / "tokenizer.json", values)
    with pytest.raises(HearthError, match=f"'{MARK}the' is not merged of '{MARK}t' and 'he'"):
        read_vocabulary(spm, 1000)


def test_a_byte_without_a_token(spm: Path) -> None:
    pieces = [piece for piece in scored_pieces() if piece != "<0x41>"]
    write_json(spm / "tokenizer.json", scored(pieces, SPECIALS))
    with pytest.raises(HearthError, match="no token for byte 0x41"):
        planned_of(spm)


def test_too_many_ends(tmp_path: Path) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    change_json(folder / "generation_config.json", eos_token_id=[1, 2, 3])
    with pytest.raises(HearthError, match="tokens end an answer, and GGUF has words for 3"):
        planned_of(folder)


def test_other_vocabularies_are_named(tmp_path: Path) -> None:
    with pytest.raises(HearthError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(HearthError, match=r"tokenizer\.model but no tokenizer\.json"):
        read_tokenizer(tmp_path)


def test_a_token_with_two_ids(tmp_path: Path) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    added = [{"id": 290, "content": "hello", "special": False}]
    change_json(folder / "tokenizer.json", added_tokens=added)
    with pytest.raises(HearthError, match="'hello' is both token 259 and token 290"):
        planned_of(folder)


def test_files_that_contradict_each_other(tmp_path: Path) -> None:
    add_vocabulary(tmp_path)
    decoder = {"3": {"content": "<|end|>"}}
    change_json(tmp_path / "tokenizer_config.json", added_tokens_decoder=decoder)
    with pytest.raises(HearthError, match=r"<\|end\|>' is token 269 .* token 3 of the other files"):
        read_vocabulary(tmp_path, VOCABULARY)
