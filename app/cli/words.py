"""Facts about models, answers and settings, as the commands print them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hearth.app import settings_keys as keys
from hearth.app.cli.output import error_json
from hearth.app.format import count as count
from hearth.app.format import duration as duration
from hearth.app.format import size as size
from hearth.backends.errors import from_info

if TYPE_CHECKING:
    from hearth.app.answer import Answer
    from hearth.backends.contract import ModelInfo


def headline(info: ModelInfo) -> str:
    """The line that says what answers, such as "guide · F16 · context 2,048 · f16 KV"."""
    if info.backend == "remote":
        context = f"context {info.context:,}" if info.context else ""
        parts = (info.name, f"{info.architecture} at {info.path}", info.backend_version, context)
        return " · ".join(part for part in parts if part)
    return f"{info.name} · {info.quantization} · context {info.context:,} · {info.kv_type} KV"


def statistics(answer: Answer, seed: int | None) -> str:
    """The line of `--stats`."""
    usage, timings = answer.usage, answer.timings
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    parts = [
        f"prompt {usage.prompt_tokens:,} tokens{cached}",
        f"answer {usage.completion_tokens:,} tokens",
        f"TTFT {timings.ttft_s:.3f} s" if timings.ttft_s else "",
        f"prefill {timings.prefill_tok_per_s:,.1f} tok/s" if timings.prefill_tok_per_s else "",
        f"decode {timings.decode_tok_per_s:,.1f} tok/s" if timings.decode_tok_per_s else "",
        f"seed {seed}" if seed is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def ending(answer: Answer, info: ModelInfo, max_tokens: int | None) -> str:
    """Why the answer stops before its end; empty if it does not."""
    if answer.reason == "cancelled":
        return "(stopped)"
    if answer.reason != "length":
        return ""
    if max_tokens is not None and answer.usage.completion_tokens >= max_tokens:
        return f"(cut at --max-tokens {max_tokens:,})"
    if not info.context:  # a remote model whose server does not say
        return "(cut: the other end's limit of tokens is reached)"
    return f"(cut: the context of {info.context:,} tokens is full)"


def answer_json(answer: Answer, info: ModelInfo, seed: int | None) -> dict[str, Any]:
    """The object of `hearth run --json`."""
    return {
        "model": info.name,
        "backend": info.backend,
        "quantization": info.quantization,
        "context": info.context,
        "kv_type": info.kv_type,
        "text": answer.content,
        "reasoning": answer.reasoning or None,
        "finish_reason": answer.reason,
        "stop": answer.last.stop,
        "seed": seed,
        "usage": dataclasses.asdict(answer.usage),
        "timings": dataclasses.asdict(answer.timings),
        "notices": [*info.notices, *answer.notices],
        "logprobs": [
            dataclasses.asdict(token) for part in answer.last.parts for token in part.logprobs
        ]
        or None,
        "error": None if answer.error is None else error_json(from_info(answer.error)),
    }


def setting(name: str, value: keys.Value) -> str:
    """The value of the setting called `name`."""
    value = keys.ALL[name].shown(value) if name in keys.ALL else value
    if isinstance(value, tuple):
        return " ".join(repr(text) for text in value) or "none"
    return str(value or "none") if isinstance(value, dict) else str(value)
