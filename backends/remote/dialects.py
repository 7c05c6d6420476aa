"""What each kind of server supports beyond OpenAI's API, and under which names.

Some servers silently ignore unknown parameters, so a parameter is only sent to servers that are
known to support it; others are refused by name when the body is written. Sources: the request types
of vLLM and SGLang (`entrypoints/openai/.../protocol.py`), llama-server's README, and Hearth's own
tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hearth.backends.errors import UnsupportedParameter
from hearth.backends.remote.server import Kind

Continuing = Literal["always", "on request", "vllm", "never"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the requests of the contract are expressed for one kind of server.

    Attributes:
        names: the server's names of the contract's sampling parameters and limits.
        top_k_off: the value of top_k that keeps all tokens.
        seed_bits: seeds are reduced to this many bits; 64: the same 64 bits as a signed number.
        max_tokens: the field of a chat that limits new tokens.
        completes_to_the_end: a completion without a limit is possible, by null.
        constraints: how constraints beyond OpenAI's are written, by their kind.
        template_values: `chat_template_kwargs` are supported.
        reasoning: earlier reasoning of the assistant may be sent as `reasoning_content`.
        continues: when a final assistant message is the beginning of the answer.
        priority: 1 if higher priorities go first, -1 if lower ones do, 0 if not supported.
        fresh_prefix: the field that prevents reuse of a cached prompt; empty if there is none.
        infill: a completion may have a suffix, or the server refuses it by name.
        echoes: a completion returns log probabilities of its prompt, so that text can be scored.
        sessions: `user` names the session, for fair scheduling.
        extras: further fields of every streamed request.
        usage_extras: further `stream_options`.
    """

    kind: Kind
    names: Mapping[str, str] = field(default_factory=dict)
    top_k_off: int = 0
    seed_bits: int = 64
    max_tokens: str = "max_tokens"
    completes_to_the_end: bool = False
    constraints: Mapping[str, Callable[[Any], dict[str, Any]]] = field(default_factory=dict)
    template_values: bool = False
    reasoning: bool = False
    continues: Continuing = "never"
    priority: Literal[-1, 0, 1] = 0
    fresh_prefix: Literal["cache_prompt", "cache_salt", ""] = ""
    infill: bool = True
    echoes: bool = False
    sessions: bool = False
    extras: Mapping[str, Any] = field(default_factory=dict)
    usage_extras: Mapping[str, Any] = field(default_factory=dict)

    def refusal(self, name: str, param: str, why: str, hint: str = "") -> UnsupportedParameter:
        """The error for a parameter that the server of the model `name` does not support."""
        return UnsupportedParameter(
            param,
            f"{name} is a remote model ({self.kind}): {why}.",
            hint or "Leave it out, or ask a model that runs here.",
            remote=name,
        )


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _format(kind: str, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **more}}


def _alternatives(choices: Sequence[str]) -> str:
    """A GBNF grammar that allows exactly `choices`."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


_DRY: Final = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers")
_XTC: Final = ("xtc_probability", "xtc_threshold")
_LIMITS: Final = ("min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens")
_LIKE_VLLM: Final = ("add_generation_prompt", "truncate_prompt_tokens")
_INCLUDE_STOP: Final = {"include_stop": "include_stop_str_in_output"}
_USAGE_ALWAYS: Final = {"continuous_usage_stats": True}

HEARTH: Final = Dialect(
    "hearth",
    _same(
        *("top_k", "min_p", "typical_p", "repetition_penalty", "repetition_window"),
        *(*_DRY, "dry_window", *_XTC, *_LIMITS, *_LIKE_VLLM, "speculate", "attention_sinks"),
        "speculate_rule",
    )
    | _INCLUDE_STOP,
    constraints={
        "regex": lambda pattern: _format("regex", regex=pattern),
        "choice": lambda choices: _format("choice", choices=choices),
        "grammar": lambda grammar: _format("grammar", grammar=grammar),
    },
    template_values=True,
    reasoning=True,
    continues="on request",
    priority=1,
    fresh_prefix="cache_prompt",
    sessions=True,
)
VLLM: Final = Dialect(
    "vllm",
    _same("top_k", "min_p", "repetition_penalty", *_LIMITS, *_LIKE_VLLM) | _INCLUDE_STOP,
    top_k_off=-1,
    completes_to_the_end=True,
    constraints={
        "regex": lambda pattern: {"structured_outputs": {"regex": pattern}},
        "choice": lambda choices: {"structured_outputs": {"choice": choices}},
    },
    template_values=True,
    reasoning=True,
    continues="vllm",
    priority=-1,
    fresh_prefix="cache_salt",
    echoes=True,
    usage_extras=_USAGE_ALWAYS,
)
SGLANG: Final = Dialect(
    "sglang",
    {
        **_same("top_k", "min_p", "repetition_penalty", *_LIMITS),
        "include_stop": "no_stop_trim",
    },
    top_k_off=-1,
    seed_bits=63,
    constraints={
        "regex": lambda pattern: {"regex": pattern},
        "choice": lambda choices: {"regex": f"({'|'.join(map(re.escape, choices))})"},
    },
    template_values=True,
    reasoning=True,
    continues="on request",
    fresh_prefix="cache_salt",
    usage_extras=_USAGE_ALWAYS,
)
LLAMA_SERVER: Final = Dialect(
    "llama-server",
    {
        **_same("top_k", "min_p", "typical_p", *_DRY, *_XTC, "ignore_eos", "add_generation_prompt"),
        "repetition_penalty": "repeat_penalty",
        "repetition_window": "repeat_last_n",
        "dry_window": "dry_penalty_last_n",
    },
    seed_bits=31,
    completes_to_the_end=True,
    constraints={
        "choice": lambda choices: {"grammar": _alternatives(choices)},
        "grammar": lambda grammar: {"grammar": grammar},
    },
    template_values=True,
    reasoning=True,
    continues="always",
    fresh_prefix="cache_prompt",
    infill=False,
    extras={"return_progress": True},
)
OPENAI: Final = Dialect("openai", max_tokens="max_completion_tokens")
OTHER: Final = Dialect("other")

DIALECTS: Final[Mapping[Kind, Dialect]] = {
    dialect.kind: dialect for dialect in (HEARTH, VLLM, SGLANG, LLAMA_SERVER, OPENAI, OTHER)
}
_OWNERS: Final[Mapping[str, Kind]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}
"""Kinds of servers by `owned_by` in their list of models; OpenAI's list has several owners."""


def kind_of(entries: Sequence[Mapping[str, Any]]) -> Kind:
    """The kind of a server, judged by its list of models."""
    if any("hearth" in entry for entry in entries):
        return "hearth"
    owners = (entry.get("owned_by") for entry in entries)
    kinds = {_OWNERS.get(owner, "other") if isinstance(owner, str) else "other" for owner in owners}
    known = kinds - {"other"}
    return known.pop() if len(known) == 1 else "other"
