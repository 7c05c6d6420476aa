"""One request from a command: streams its text, lets Ctrl+C stop it and keep the text, and formats
what is printed about the model and the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from hearth.app.answer import Answer
from hearth.app.cli.state import State
from hearth.app.cli.typed import on_interrupt
from hearth.app.format import argument, right_by_position
from hearth.app.host_link import HostLink
from hearth.backends.contract.events import Timings, Token
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import NoChatTemplate


def ask(
    link: HostLink,
    spec: ModelSpec,
    request: Request,
    show: Callable[[str], None],
    think: Callable[[str], None],
) -> Answer:
    """The answer to `request`, also when it fails or Ctrl+C stops it (`reason` "cancelled").

    Args:
        show: called with each piece of text.
        think: called with each piece of the reasoning.
    """
    answer = Answer(request.n)
    with link.stream(spec, request) as events, on_interrupt(events.interrupt):
        for event in events:
            answer.add(event)
            if isinstance(event, Token):
                (think if event.channel == "reasoning" else show)(event.text)
    answer.reason = answer.reason or "cancelled"
    return answer


def require_template(info: ModelInfo) -> None:
    """Raise `NoChatTemplate` unless the model can chat."""
    from hearth.quant.gguf.file import ENCODERS

    if info.architecture in ENCODERS:
        raise NoChatTemplate(
            f"{info.name} is an encoder, which cannot generate text.",
            "It embeds or ranks texts: use the endpoint of hearth serve.",
        )
    if not info.has_chat_template:
        raise NoChatTemplate(
            f"{info.name} has no chat template, so it cannot chat.",
            f"It can complete text: hearth run --raw {argument(info.name)} TEXT.",
        )


def announce(state: State, info: ModelInfo, *, stats: bool) -> None:
    """Print on stderr which model answers, and notices about it."""
    if stats or state.output.narrates_to_terminal:
        state.output.note(headline(info))
    for notice in info.notices:
        state.output.note(notice)


def headline(info: ModelInfo) -> str:
    """The line that names the model, such as "guide · F16 · context 2,048 · f16 KV"."""
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
        _drafts(timings),
        f"seed {seed}" if seed is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _drafts(timings: Timings) -> str:
    """How many draft tokens were accepted."""
    drafted, accepted = sum(timings.drafted_tokens), sum(timings.accepted_tokens)
    parts = right_by_position(timings.drafted_tokens, timings.accepted_tokens)
    return f"drafts {accepted:,} of {drafted:,} right (by position {parts})" if drafted else ""


def ending(answer: Answer, info: ModelInfo, max_tokens: int | None) -> str:
    """Why the answer was cut short; empty if it was not."""
    if answer.reason == "cancelled":
        return "(stopped)"
    if answer.reason != "length":
        return ""
    if max_tokens is not None and answer.usage.completion_tokens >= max_tokens:
        return f"(cut at --max-tokens {max_tokens:,})"
    if 0 < info.context <= answer.usage.completion_tokens:  # With attention sinks.
        return f"(cut after {answer.usage.completion_tokens:,} tokens; --max-tokens allows more)"
    if not info.context:  # a remote model whose server does not report its context
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
        "usage": asdict(answer.usage),
        "timings": asdict(answer.timings),
        "notices": [*info.notices, *answer.notices],
        "logprobs": [asdict(token) for part in answer.last.parts for token in part.logprobs]
        or None,
        "error": None if answer.error is None else asdict(answer.error),
    }
