"""Fields that several endpoints share."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Parameter, Table, honoured, refused, without_effect
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Text,
)
from hearth.backends.engine import validate
from hearth.backends.engine.fields import REQUEST_FIELDS, SAMPLING_FIELDS

MODEL: Final = honoured(
    "model",
    Text(1, 256),
    "the name of a model of the library; loaded when it is first asked for",
    required=True,
)
OF_MODEL: Final = honoured("model", Text(1, 256), "the name of a model", "every one, or the first")
"""In a query."""
STREAM: Final = honoured("stream", Flag(), "send the answer as it is written", "false")
USER: Final = honoured(
    "user",
    Text(longest=256),
    "whom the request is for: requests of one user take turns with those of others",
    "the client's address",
)
KEEP_ALIVE: Final = honoured(
    "keep_alive",
    AnyOf((Number(-1e9, 1e9), Text(1, 20, r"^-?[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h)?$"))),
    "unload the model after so long without a request: seconds, or a text such as 5m; 0: at once; "
    "negative: never",
    "the settings'",
)
STOP: Final = honoured(
    "stop",
    AnyOf((Text(1, 256), ListOf(Text(1, 256), validate.MOST_STOPS))),
    "the answer ends before the first of these texts",
    "the settings'",
)
LOGIT_BIAS: Final = honoured(
    "logit_bias",
    MapOf(Number(-100, 100), validate.MOST_BIASES, "^(0|[1-9][0-9]{0,9})$"),
    "added to the logits of tokens, by token id; -100 bans a token",
    "none",
)
_SEED: Final = honoured(
    "seed",
    Number(-(2**63), 2**64 - 1, whole=True),
    "same seed, same text; negative ones are the same 64 bits without a sign",
    "a fresh one",
)


def sampling() -> tuple[Parameter, ...]:
    """How tokens are drawn: every number of `SamplingParams`, with the ranges of all front ends."""
    numbers = (
        honoured(field.name, Number.of(field), field.help, "the settings'")
        for field in SAMPLING_FIELDS
        if field.name not in ("seed", "logprobs")
    )
    breakers = honoured(
        "dry_sequence_breakers",
        ListOf(Text(1, 64), validate.MOST_BREAKERS),
        "DRY: texts that end a run",
        "the settings'",
    )
    return (*numbers, _SEED, LOGIT_BIAS, breakers)


def limits(*names: str) -> tuple[Parameter, ...]:
    """Those of the numbers of `Request`, by name."""
    defaults = {"n": "1", "min_tokens": "0", "priority": "0", "max_tokens": "the settings'"}
    return tuple(
        honoured(field.name, Number.of(field), field.help, defaults.get(field.name, ""))
        for field in REQUEST_FIELDS
        if field.name in names
    )


IGNORE_EOS: Final = honoured(
    "ignore_eos", Flag(), "go on after the model's end of text, until max_tokens", "false"
)
CACHE_PROMPT: Final = honoured(
    "cache_prompt", Flag(), "false: compute the whole prompt, also what is known", "true"
)
RETURN_PROGRESS: Final = honoured(
    "return_progress",
    Flag(),
    "while the prompt is computed, stream chunks with prompt_progress: processed of total tokens",
    "false; comments tell it",
)
STREAM_OPTIONS: Final = honoured(
    "stream_options",
    Table(
        "StreamOptions",
        (
            honoured("include_usage", Flag(), "one more chunk with the usage", "false"),
            refused(
                "include_obfuscation",
                "nobody between this server and its client could measure packets; only false",
                OneOf((False,)),
            ),
        ),
    ),
    "only with stream",
)
OPENAI_METADATA: Final = (
    without_effect("store", Flag(), "nothing is stored here"),
    without_effect("metadata", MapOf(Text(longest=512), 16), "nothing is stored here"),
    without_effect("service_tier", Text(longest=64), "there is one tier"),
    without_effect("safety_identifier", Text(longest=512), "nobody is reported"),
    without_effect("prompt_cache_key", Text(longest=512), "prefixes are found by their tokens"),
    without_effect("prompt_cache_retention", Text(longest=64), "see cache_control at /v1/messages"),
    without_effect("prompt_cache_options", AnyObject(), "prefixes are found by their tokens"),
)
"""Fields of OpenAI's that would change nothing on one machine."""
