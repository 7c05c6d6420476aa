"""The byte-level BPE vocabulary of guide: training it, using it, and its list forms for GGUF.

The split pattern is the one that llama.cpp calls ``qwen2`` (single digits, words with one leading
character, runs of punctuation), so a GGUF file with ``tokenizer.ggml.pre = "qwen2"`` yields the
same ids in llama.cpp as the ``tokenizers`` library does here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
PAD, END, SYSTEM, USER, ASSISTANT = range(5)
SPECIALS = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
)
ROLE_IDS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}

# Source: Qwen/Qwen2 tokenizer.json and LLAMA_VOCAB_PRE_TYPE_QWEN2 in llama.cpp.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('guide knows the roles system, user and assistant, not ' + m['role']) }}"
    "{% elif m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must come first') }}"
    "{% endif %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

Conversation = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Vocabulary:
    """The two lists that define a byte-level BPE vocabulary in GGUF.

    ``tokens``: 4,096 strings, index = id, bytes spelled in GPT-2's printable alphabet.
    ``merges``: "left right" strings, highest priority first.
    """

    tokens: list[str]
    merges: list[str]


def _assemble(model: models.BPE) -> Tokenizer:
    """A tokenizer around ``model`` with guide's split pattern, decoder and special tokens."""
    tok = Tokenizer(model)
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    # "<|end|>" typed by a user is seven bytes of text, not the end of a turn: special ids are
    # placed by render_ids alone.
    tok.encode_special_tokens = True
    return tok


def _added(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learns a vocabulary of ``vocab_size`` ids from ``texts``; same texts, same vocabulary.

    The special tokens take ids 0 to 7, the 256 bytes come next, the learned merges last.
    """
    tok = _assemble(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[_added(s) for s in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tok.train_from_iterator(texts, trainer=trainer)
    return tok


def vocabulary(tok: Tokenizer) -> Vocabulary:
    """The GGUF lists of ``tok``. Raises ``ValueError`` where ids are not 0..n-1 without a gap."""
    spec = json.loads(tok.to_str())["model"]
    ids: dict[str, int] = dict(spec["vocab"])
    ids.update(tok.get_vocab(with_added_tokens=True))
    tokens = sorted(ids, key=lambda t: ids[t])
    if [ids[t] for t in tokens] != list(range(len(tokens))):
        raise ValueError(f"token ids have gaps: {len(tokens)} tokens, last id {ids[tokens[-1]]}")
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["merges"]]
    return Vocabulary(tokens, merges)


def from_vocabulary(vocab: Vocabulary) -> Tokenizer:
    """The tokenizer that ``vocabulary`` took apart (for example read back from a GGUF file)."""
    ids = {t: i for i, t in enumerate(vocab.tokens)}
    pairs: list[tuple[str, str]] = []
    for merge in vocab.merges:
        left, right = merge.split(" ")
        pairs.append((left, right))
    tok = _assemble(models.BPE(vocab=ids, merges=pairs))
    tok.add_special_tokens([_added(s) for s in SPECIALS])
    return tok


def from_json(text: str) -> Tokenizer:
    """The tokenizer that ``Tokenizer.to_str`` wrote down."""
    tok = Tokenizer.from_str(text)
    tok.encode_special_tokens = True  # not part of the JSON
    return tok


def encode_text(tok: Tokenizer, text: str) -> list[int]:
    """Ids of plain ``text``; spellings of special tokens inside it stay ordinary text.

    Content from a user cannot end a turn: it never maps to ids 0 to 7.
    """
    ids: list[int] = tok.encode(text, add_special_tokens=False).ids
    return ids


def render_ids(
    tok: Tokenizer, messages: Conversation, add_generation_prompt: bool = False
) -> list[int]:
    """Ids of a conversation as ``CHAT_TEMPLATE`` spells it.

    Raises ``ValueError`` for a role other than system, user and assistant.
    """
    ids: list[int] = []
    for role, text in messages:
        if role not in ROLE_IDS:
            raise ValueError(f"unknown role {role!r}: expected one of {sorted(ROLE_IDS)}")
        ids.append(ROLE_IDS[role])
        ids += encode_text(tok, text)
        ids.append(END)
    if add_generation_prompt:
        ids.append(ASSISTANT)
    return ids
