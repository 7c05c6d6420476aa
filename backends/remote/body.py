"""Makes the JSON body of an OpenAI-style request from a `Request`; parameters that cannot be
expressed are refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Constraint, Request, Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.remote.dialects import Dialect

_OFF: Final[Mapping[str, Any]] = {
    "top_k": 0,
    "min_p": 0,
    "typical_p": 1,
    "repetition_penalty": 1,
    "dry_multiplier": 0,
    "xtc_probability": 0,
}
"""Sampling steps that not every server has, with the value that switches each off."""
_LIMITS: Final = (
    *("min_tokens", "ignore_eos", "stop_token_ids", "include_stop", "skip_special_tokens"),
    *("add_generation_prompt", "truncate_prompt_tokens", "attention_sinks", "speculate"),
    "speculate_rule",
)
"""Other fields that not every server has."""
_DETAILS: Final[Mapping[str, tuple[str, ...]]] = {
    "dry_multiplier": ("dry_base", "dry_allowed_length", "dry_window", "dry_sequence_breakers"),
    "xtc_probability": ("xtc_threshold",),
}
"""Parameters that only matter while a sampling step is on, by that step."""
_CONSTRAINTS: Final[Mapping[str, str]] = {
    "regex": "a regular expression",
    "choice": "a list of strings",
    "grammar": "a grammar",
}
_USUAL: Final = Request()
_WHOLE_WINDOW: Final = -1


class _Writer:
    """Writes one body, and raises the errors for unsupported parameters."""

    def __init__(self, request: Request, dialect: Dialect, name: str) -> None:
        self.request = request
        self.dialect = dialect
        self.name = name
        self.body: dict[str, Any] = {}

    def need(self, can: object, param: str, why: str = "", hint: str = "") -> None:
        """Refuse `param` unless `can` is true, i.e. this kind of server supports it."""
        if not can:
            why = why or f"{param} cannot be passed on to it"
            raise self.dialect.refusal(self.name, param, why, hint)

    def sampling(self) -> None:
        params, names = self.request.sampling, self.dialect.names
        self.body["temperature"] = params.temperature
        self.body["top_p"] = params.top_p
        for param in ("frequency_penalty", "presence_penalty"):
            if value := getattr(params, param):
                self.body[param] = value
        for param, off in _OFF.items():
            value = getattr(params, param)
            self.need(param in names or value == off, param)
            if param not in names:
                continue
            self.body[names[param]] = (
                self.dialect.top_k_off if param == "top_k" and value == off else value
            )
            for detail in _DETAILS.get(param, ()):
                fine = getattr(params, detail)
                if value != off or fine != getattr(_USUAL.sampling, detail):
                    self.body[names[detail]] = list(fine) if isinstance(fine, tuple) else fine
        self._window(params)
        if params.logit_bias:
            self.body["logit_bias"] = {str(token): b for token, b in params.logit_bias.items()}
        if params.seed is not None:
            self.body["seed"] = _seed(params.seed, self.dialect.seed_bits)

    def _window(self, params: SamplingParams) -> None:
        penalties = (params.repetition_penalty - 1, params.frequency_penalty)
        if not any((*penalties, params.presence_penalty)):
            return
        if wire := self.dialect.names.get("repetition_window"):
            self.body[wire] = params.repetition_window
        else:
            self.need(
                params.repetition_window == _WHOLE_WINDOW,
                "repetition_window",
                f"its penalties look back over all text, not {params.repetition_window} tokens",
                "Set repetition_window to -1.",
            )

    def limits(self) -> None:
        request, names = self.request, self.dialect.names
        for param in _LIMITS:
            value = getattr(request, param)
            if value != getattr(_USUAL, param):
                self.need(param in names, param)
                self.body[names[param]] = list(value) if isinstance(value, tuple) else value
        if request.stop:
            self.body["stop"] = list(request.stop)
        if request.n > 1:
            self.body["n"] = request.n
        if request.priority:
            self.need(self.dialect.priority, "priority")
            self.body["priority"] = request.priority * self.dialect.priority
        if request.session and self.dialect.sessions:
            self.body["user"] = request.session
        if not request.reuse_prefix:
            self._fresh_prefix()

    def _fresh_prefix(self) -> None:
        way = self.dialect.fresh_prefix
        self.need(way, "reuse_prefix", "it cannot be told to forget a prompt")
        # With a unique salt, the prompt cannot match the prefix of another prompt.
        self.body[way] = secrets.token_urlsafe(32) if way == "cache_salt" else False

    def constraint(self, constraint: Constraint) -> None:
        kind, source = constraint.kind, constraint.source
        if kind == "json":
            self.body["response_format"] = {"type": "json_object"}
        elif kind == "json_schema":
            named = {"name": "answer", "schema": json.loads(source), "strict": True}
            self.body["response_format"] = {"type": "json_schema", "json_schema": named}
        else:
            ways, why = (
                self.dialect.constraints,
                f"it cannot hold an answer to {_CONSTRAINTS[kind]}",
            )
            self.need(kind in ways, "constraint", why)
            self.body |= ways[kind](json.loads(source) if kind == "choice" else source)

    def chat(self, messages: tuple[Message, ...]) -> None:
        request = self.request
        self.need(request.suffix is None, "suffix", "a chat has no suffix")
        self.need(request.beams is None, "beams", "beam search is for completions")
        self.body["messages"] = [_message(item, self.dialect) for item in messages]
        self._continuing(messages)
        if request.max_tokens is not None:
            self.body[self.dialect.max_tokens] = request.max_tokens
        if request.sampling.logprobs is not None:
            self.body["logprobs"] = True
            self.body["top_logprobs"] = request.sampling.logprobs
        if request.tools:
            self._tools()
        self._template_values()

    def _continuing(self, messages: tuple[Message, ...]) -> None:
        way, wanted = self.dialect.continues, self.request.continue_last
        open_ended = messages[-1].role == "assistant"
        why = "an answer begun for it cannot be continued"
        self.need(not wanted or way != "never", "continue_last", why)
        why = "it would go on with the last message, which is the assistant's"
        self.need(wanted or not open_ended or way != "always", "messages", why)
        if not open_ended or way in ("always", "never"):
            return
        if wanted or self.dialect.kind == "hearth":
            self.body["continue_final_message"] = wanted
        if wanted and way == "vllm":
            self.body["add_generation_prompt"] = False

    def _tools(self) -> None:
        request = self.request
        if request.tool_choice == "none" and self.dialect.kind != "hearth":
            return  # Most templates would show the tools nevertheless.
        self.body["tools"] = [_tool(tool) for tool in request.tools]
        self.body["tool_choice"] = (
            {"type": "function", "function": {"name": request.forced_tool}}
            if request.forced_tool
            else request.tool_choice
        )
        if not request.parallel_tool_calls:
            self.body["parallel_tool_calls"] = False

    def _template_values(self) -> None:
        values = dict(self.request.template_values)
        if "reasoning_effort" in values:
            self.body["reasoning_effort"] = values.pop("reasoning_effort")
        if not values:
            return
        why = "its chat template takes no values"
        self.need(self.dialect.template_values, "template_values", why)
        self.body["chat_template_kwargs"] = values

    def completion(self) -> None:
        request = self.request
        self.body["prompt"] = (
            request.text if request.text is not None else list(request.token_ids or ())
        )
        if (beams := request.beams) is not None:
            self.need(
                self.dialect.kind == "hearth", "beams", "its completions are not searched for"
            )
            self.body |= {
                "use_beam_search": True,
                "beam_width": beams.width,
                "length_penalty": beams.length_penalty,
                "early_stopping": beams.early_stopping,
            }
        if request.suffix is not None:
            self.need(self.dialect.infill, "suffix", "its completions have no suffix")
            self.body["suffix"] = request.suffix
        if request.max_tokens is not None:
            self.body["max_tokens"] = request.max_tokens
        else:
            why = "its completions end after 16 tokens unless a number is set"
            hint = "Set max_tokens (--max-tokens)."
            self.need(self.dialect.completes_to_the_end, "max_tokens", why, hint)
            self.body["max_tokens"] = None
        if request.sampling.logprobs is not None:
            self.body["logprobs"] = request.sampling.logprobs


def write_body(request: Request, dialect: Dialect, name: str, model: str) -> dict[str, Any]:
    """The body of a streamed chat (with `messages`) or completion (without).

    Args:
        name: the model's name here, for error messages.
        model: the model's name on the server.

    Raises:
        UnsupportedParameter: `param`, as the contract names it, is not supported by this kind of
            server.
    """
    writer = _Writer(request, dialect, name)
    writer.body["model"] = model
    if request.messages is not None:
        writer.chat(request.messages)
    else:
        writer.completion()
    writer.sampling()
    writer.limits()
    if request.constraint is not None:
        writer.constraint(request.constraint)
    writer.body["stream"] = True
    writer.body["stream_options"] = {"include_usage": True, **dialect.usage_extras}
    writer.body.update(dialect.extras)
    return writer.body


def notices(request: Request, dialect: Dialect) -> tuple[str, ...]:
    """Notices about parts of `request` that are not passed to this kind of server, where that does
    not change what is asked.
    """
    texts = []
    messages = request.messages or ()
    if any(message.keep_s > 0 for message in messages):
        texts.append("The prompt is not kept: a remote model's cache is the other end's own.")
    if not dialect.reasoning and any(message.reasoning for message in messages):
        texts.append("Earlier reasoning is left out: messages there have no field for it.")
    return tuple(texts)


def _message(message: Message, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning and dialect.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["content"] = message.content or None
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    if message.name:
        body["name"] = message.name
    return body


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _seed(seed: int, bits: int) -> int:
    """`seed` reduced to `bits` bits; equal seeds stay equal."""
    if bits < 64:
        return seed & ((1 << bits) - 1)
    return seed - 2**64 if seed >= 2**63 else seed
