"""Fields that several endpoints share."""

from __future__ import annotations

from typing import Final, get_args

from hearth.app.server.parameters import Parameter, Table, honoured, without_effect
from hearth.app.server.schema import (
    AnyOf,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Schema,
    Sentinel,
    Text,
)
from hearth.backends.contract.fields import REQUEST_FIELDS, Field
from hearth.backends.contract.sampling import SAMPLING_FIELDS, Speculate, SpeculateRule
from hearth.backends.engine import validate


def kind(
    value: str,
    *fields: Parameter,
    title: str = "",
    key: str = "type",
    required: bool = True,
    check_spelling: bool = False,
) -> Table:
    """Objects whose field `key` is `value`, or is absent unless it is `required`."""
    meaning = "the role of the author" if key == "role" else "the type"
    default = "" if required else value
    first = honoured(key, OneOf((value,)), meaning, default, required=required)
    return Table(title or value, (first, *fields), check_spelling)


MODEL: Final = honoured(
    "model",
    Text(longest=256),
    "a model of the library, or an alias; loaded when it is first requested",
    "the model that the server was started with",
)
OF_MODEL: Final = honoured(
    "model",
    Text(1, 256),
    "the name of a model",
    "the model that the server was started with; at /v1/cache every loaded model",
)
"""The model as a query parameter."""
NO_MEDIA: Final = "only text is supported"
STREAM: Final = honoured("stream", Flag(), "send the answer while it is generated", "false")
USER: Final = honoured(
    "user",
    Text(),
    "identifies the user or client; capacity is shared fairly between users",
    "the API key, else the client's address and User-Agent",
)
_NUMBER: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
KEEP_ALIVE: Final = honoured(
    "keep_alive",
    AnyOf((Number(-1e9, 1e9), Text(1, 32, rf"^-?({_NUMBER}|({_NUMBER}(ms|s|m|h))+)$"))),
    "unload the model after this time without a request: seconds, or a string such as 5m or "
    "1h30m0s; 0: immediately; negative: never",
    "the settings'",
)
STOP: Final = honoured(
    "stop",
    AnyOf((Text(longest=256), ListOf(Text(longest=256), validate.MOST_STOPS))),
    "end the answer before the first of these strings; empty ones are ignored",
    "the settings'",
)
STOP_TOKENS: Final = (
    honoured(
        "stop_token_ids",
        ListOf(Number(0, 2**31 - 1, whole=True), 64),
        "end the answer at the first of these tokens",
        "none",
    ),
    honoured(
        "include_stop_str_in_output",
        Flag(),
        "include the stop string or token that ended the answer",
        "false",
    ),
    honoured("skip_special_tokens", Flag(), "leave special tokens out of the answer", "true"),
)
"""vLLM's fields about the end of an answer."""
LOGIT_BIAS: Final = honoured(
    "logit_bias",
    MapOf(Number(-100, 100), validate.MOST_BIASES, "^(0|[1-9][0-9]{0,9})$"),
    "values to add to the logits, by token id; -100 bans a token",
    "none",
)
TRUNCATE: Final = honoured(
    "truncate_prompt_tokens",
    Sentinel(Number(1, 2**31 - 1, whole=True), -1),
    "keep only the last tokens of the prompt, this many; -1: as many as fit",
    "a prompt that is too long is an error",
)
TRUNCATION: Final = honoured(
    "truncation",
    OneOf(("auto", "disabled")),
    "of a conversation that exceeds the context: auto leaves its oldest turns out, which is a "
    "notice; disabled is an error",
    "the setting context_overflow, or disabled",
)
RETURN_TOKEN_IDS: Final = honoured(
    "return_token_ids",
    Flag(),
    "also return token ids: prompt_token_ids, and token_ids of each choice",
    "false",
)
PROMPT_LOGPROBS: Final = honoured(
    "prompt_logprobs",
    Number(0, 20, whole=True),
    "return the log probability of each prompt token and of this many alternatives; not with "
    "stream",
)
_SEED: Final = honoured(
    "seed",
    Sentinel(Number(-(2**63), 2**64 - 1, whole=True)),
    "the same seed gives the same text; -1: random; other negative values are read as unsigned"
    " 64-bit integers",
    "the settings', or random",
)
_ALIASES: Final = {
    "repetition_penalty": ("repeat_penalty",),
    "repetition_window": ("repeat_last_n",),
    "max_tokens": ("n_predict",),
}
"""llama.cpp's and Ollama's names of the same parameters."""


def _number(field: Field) -> Schema:
    # A top_p of 0, which OpenAI's API allows, is converted by `requests.build`.
    above_minimum = field.above_minimum and field.name != "top_p"
    number = Number(field.minimum, field.maximum, field.kind == "int", above_minimum)
    if field.name == "max_tokens":
        return Sentinel(number)
    return Sentinel(number, 0) if field.name == "top_k" else number


def sampling() -> tuple[Parameter, ...]:
    """The fields of `SamplingParams`, with the ranges of all front ends; a top_k of -1 is off."""
    numbers = (
        honoured(
            field.name,
            _number(field),
            field.help,
            "the settings'",
            aliases=_ALIASES.get(field.name, ()),
        )
        for field in SAMPLING_FIELDS
        if field.name not in ("seed", "logprobs")
    )
    breakers = honoured(
        "dry_sequence_breakers",
        ListOf(Text(1, 64), validate.MOST_BREAKERS),
        "DRY: strings that end a run",
        "the settings'",
    )
    return (*numbers, _SEED, LOGIT_BIAS, breakers)


def limits(*names: str, **aliases: tuple[str, ...]) -> tuple[Parameter, ...]:
    """The numeric fields `names` of `Request`, with additional `aliases` by name."""
    defaults = {"n": "1", "min_tokens": "0", "priority": "0"}
    defaults |= dict.fromkeys(("max_tokens", "attention_sinks"), "the settings'")
    return tuple(
        honoured(
            field.name,
            _number(field),
            field.help,
            defaults.get(field.name, ""),
            aliases=(*_ALIASES.get(field.name, ()), *aliases.get(field.name, ())),
        )
        for field in REQUEST_FIELDS
        if field.name in names
    )


IGNORE_EOS: Final = honoured(
    "ignore_eos", Flag(), "continue after the end-of-text token, until max_tokens", "false"
)
CACHE_PROMPT: Final = honoured(
    "cache_prompt", Flag(), "reuse the cached part of the prompt instead of computing it", "true"
)
SPECULATE: Final = honoured(
    "speculate",
    OneOf(get_args(Speculate)),
    "how tokens are guessed before each step; the law of the text is the same with and without",
    "the settings'",
)
SPECULATE_RULE: Final = honoured(
    "speculate_rule",
    OneOf(get_args(SpeculateRule)),
    "which guesses are kept: those that are drawn as well (match), so that text does not depend on"
    " them, or more of a draft model's (rejection), which cannot be asked for with seed",
    "the settings'",
)
RETURN_PROGRESS: Final = honoured(
    "return_progress",
    Flag(),
    "while the prompt is computed, send chunks with prompt_progress: processed and total tokens",
    "false, which sends comments",
)
STREAM_OPTIONS: Final = honoured(
    "stream_options",
    Table(
        "StreamOptions",
        (
            honoured("include_usage", Flag(), "send a final chunk with the usage", "false"),
            honoured(
                "continuous_usage_stats", Flag(), "add the usage so far to every chunk", "false"
            ),
            without_effect(
                "include_obfuscation", "the stream never leaves this machine", OneOf((False,))
            ),
        ),
        check_spelling=True,
    ),
    "options of the stream; only with stream",
)
OPENAI_METADATA: Final = (
    without_effect("store", "nothing is stored", OneOf((False,))),
    without_effect("metadata", "nothing is stored"),
    without_effect("service_tier", "there is only one tier", OneOf(("auto", "default"))),
    without_effect("safety_identifier", "users are not reported to anyone"),
    without_effect("prompt_cache_key", "cached prefixes are found by their tokens"),
    without_effect("prompt_cache_retention", "see cache_control at /v1/messages"),
)
"""Fields of OpenAI's API about its service."""
COMPLETIONS: Final = (
    *(CACHE_PROMPT, SPECULATE, SPECULATE_RULE, RETURN_PROGRESS, KEEP_ALIVE, USER),
    *OPENAI_METADATA,
)
"""The last fields that chat and text completions share."""
