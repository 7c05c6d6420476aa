"""Tokens whose name has a meaning: where a model stops, and where code is filled in.

Files name one end-of-text token, but chat models end their turns with another. The lists are those
of llama.cpp (`llama_vocab::impl::load` in `llama-vocab.cpp`), so that a model stops at the same
tokens with either runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hearth.backends.text.tokenizer import Tokenizer

Role = Literal[
    "eos", "eot", "eom", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"
]


def _infill_names(word: str, short: str, deepseek: str) -> tuple[str, ...]:
    return (
        *(f"<|fim_{word}|>", f"<fim-{word}>", f"<fim_{word}>", f"<｜fim▁{deepseek}｜>"),
        *(f"<{short}>", f"▁<{short}>", f"<|code_{word}|>", f"<|{word}|>"),
    )


_NAMES: Final[Mapping[Role, tuple[str, ...]]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": _infill_names("prefix", "PRE", "begin"),
    "fim_suf": _infill_names("suffix", "SUF", "hole"),
    "fim_mid": _infill_names("middle", "MID", "end"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Token names for each role, for files that do not give the id."""

_ENDS: Final = (
    *_NAMES["eot"],
    *_NAMES["eom"],
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)
_HARMONY: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Marks of gpt-oss: they are part of its output, so they have a text."""
_END_OF_A_PART: Final = "<|end|>"
"""Such a mark too, in models where it does not end an answer."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The meanings of the token names of a vocabulary."""

    end_ids: frozenset[int]
    infill: tuple[int, int, int] | None
    """The tokens before the prefix, before the suffix and before the middle."""
    control: frozenset[int]
    """Tokens that are control tokens by their name, whatever type the file gives them."""
    written: frozenset[int]
    """Marks that have a text, unlike control tokens, whatever type the file gives them; plain text
    does not become one of them.
    """
    ordinary: frozenset[int]
    """Tokens that are not special, whatever type the file gives them."""


def special_ids(ids: Mapping[str, int], given: Mapping[Role, int]) -> SpecialIds:
    """The meanings of the names in a vocabulary.

    Args:
        ids: ids of the tokens that may be special, by their text.
        given: ids that the file itself gives.
    """
    roles = dict(given)
    control: set[int] = set()
    for role, names in _NAMES.items():
        ident = next((ids[name] for name in names if name in ids), None)
        if role not in roles and ident is not None:
            roles[role] = ident
            control.add(ident)
    named = {name: ids[name] for name in _ENDS if name in ids}
    control.update(named.values())
    written = {ids[name] for name in _HARMONY if name in ids}
    ordinary: set[int] = set()
    ends = set(named.values())
    ends.update(roles[role] for role in _ENDING_ROLES if role in roles)
    if _END_OF_A_PART in ids and _is_end_of_a_part(named):
        ends.discard(ids[_END_OF_A_PART])
        written.add(ids[_END_OF_A_PART])
    if "</s>" in named and "<|tool_response>" in named:
        ends.discard(named["</s>"])
        ordinary.add(named["</s>"])
    infill = tuple(roles[role] for role in ("fim_pre", "fim_suf", "fim_mid") if role in roles)
    return SpecialIds(
        end_ids=frozenset(ends),
        infill=(infill[0], infill[1], infill[2]) if len(infill) == 3 else None,
        control=frozenset(control - written - ordinary),
        written=frozenset(written),
        ordinary=frozenset(ordinary),
    )


def written_marks(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The marks of gpt-oss that are tokens of `tokenizer`. They have a text, so they are not among
    its control tokens; but in a template they mean the tokens, and in typed text the text.
    """
    return tuple(
        mark
        for mark in (*_HARMONY, _END_OF_A_PART)
        if len(tokenizer.encode(mark, special=True, add_bos=False)) == 1
    )


_ENDING_ROLES: Final[tuple[Role, ...]] = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def _is_end_of_a_part(named: Mapping[str, int]) -> bool:
    """Whether `<|end|>` ends only a part of an answer (gpt-oss, Solar Open)."""
    calls = "<|call|>" in named or "<|calls|>" in named
    return calls and ("<|return|>" in named or "<|flush|>" in named)
