"""`/api/...`: the fields of Ollama's API."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hearth.app.server.parameters import Parameter, Table, Tagged, honoured, refused, without_effect
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    ListOf,
    Number,
    OneOf,
    Sentinel,
    Text,
)
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import EFFORTS, MOST_MESSAGES, MOST_TOOLS, NAME, TOOLS
from hearth.backends.engine import validate

_NO_MEDIA: Final = "models read text only"
_OF_LOADING: Final = "the settings decide how a model is loaded"
_NEVER_CUT: Final = "prompts are never cut: one that is too long is refused"
_COUNT: Final = Number(-2, 2**31 - 1, whole=True)
_STREAM: Final = honoured("stream", Flag(), "send the answer while it is generated", "true")
_IMAGES: Final = refused("images", _NO_MEDIA, ListOf(Text(), 0))
_TEMPLATE: Final = refused(
    "template", "templates come with models or from the settings", Text(longest=0)
)
_MODEL: Final = replace(common.MODEL, aliases=("name",))

SEED: Final = honoured(
    "seed",
    Sentinel(Number(-(2**63), 2**64 - 1, whole=True)),
    "same seed, same text; -1: a fresh one",
    "-1",
)
OPTIONS: Final = Table(
    "Options",
    (
        honoured("num_predict", _COUNT, "at most this many new tokens; negative: no limit"),
        honoured(
            "num_ctx",
            Number(1, 2**31 - 1, whole=True),
            "most tokens of prompt and answer together; above the context of the loaded model, that"
            " is used, and a notice says so",
            "the context of the loaded model",
        ),
        *(SEED if row.name == "seed" else row for row in common.sampling()),
        common.STOP,
        without_effect("num_keep", _NEVER_CUT, OneOf((0, -1))),
        without_effect("draft_num_predict", "there is no speculative decoding"),
        without_effect("mirostat", "use min_p or xtc_probability", OneOf((0,))),
        without_effect("mirostat_tau", "use min_p or xtc_probability"),
        without_effect("mirostat_eta", "use min_p or xtc_probability"),
        without_effect("tfs_z", "use min_p or typical_p", OneOf((1, 1.0))),
        without_effect("penalize_newline", "penalties apply to every token", OneOf((True,))),
        *(
            without_effect(name, _OF_LOADING)
            for name in (
                *("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock"),
                *("numa", "low_vram", "f16_kv", "vocab_only", "logits_all"),
            )
        ),
    ),
    check_spelling=True,
)
_OPTIONS: Final = honoured("options", OPTIONS, "sampling and limits", "the settings'")
_FORMAT: Final = honoured(
    "format", AnyOf((OneOf(("json", "")), AnyObject())), "json, or the JSON schema of the answer"
)
_THINK: Final = honoured(
    "think",
    AnyOf((Flag(), OneOf((*EFFORTS, "max")))),
    "think before the answer, or how much, where the chat template can express it",
    "the model's",
)
_LOGPROBS: Final = (
    honoured("logprobs", Flag(), "log probability of each token of the answer", "false"),
    honoured(
        "top_logprobs", Number(0, 20, whole=True), "and this many alternatives; with logprobs"
    ),
)
_CUT: Final = (
    without_effect("truncate", _NEVER_CUT, OneOf((False,))),
    without_effect("shift", _NEVER_CUT, OneOf((False,))),
)

_CALL: Final = Table(
    "OllamaCall",
    (
        honoured("id", Text(longest=256), "ties the tool's answer to it"),
        without_effect("type", "calls are of functions", OneOf(("function",))),
        honoured(
            "function",
            Table(
                "OllamaCalledFunction",
                (
                    honoured("name", NAME, "what was called", required=True),
                    honoured(
                        "arguments",
                        AnyOf((AnyObject(), Text())),
                        "its arguments, or their JSON text",
                        required=True,
                    ),
                    without_effect("index", "calls are in order", Number(0, 1023, whole=True)),
                ),
            ),
            "what was called",
            required=True,
        ),
    ),
)


def _role(role: str, *fields: Parameter) -> Table:
    return Table(
        f"Ollama {role} message",
        (
            honoured("role", OneOf((role,)), "whose message it is", required=True),
            honoured("content", Text(), "its text"),
            _IMAGES,
            *fields,
        ),
    )


CHAT: Final = Table(
    "OllamaChat",
    (
        _MODEL,
        honoured(
            "messages",
            ListOf(
                Tagged(
                    "role",
                    {
                        "system": _role("system"),
                        "user": _role("user"),
                        "assistant": _role(
                            "assistant",
                            honoured("thinking", Text(), "what it thought"),
                            honoured("tool_calls", ListOf(_CALL, MOST_TOOLS), "what it called"),
                        ),
                        "tool": _role(
                            "tool",
                            honoured(
                                "tool_name",
                                Text(longest=128),
                                "which tool answers",
                                aliases=("name",),
                            ),
                            honoured("tool_call_id", Text(longest=256), "which call it answers"),
                        ),
                    },
                    {},
                ),
                MOST_MESSAGES,
            ),
            "the conversation so far; none: the model is loaded, or unloaded with keep_alive 0",
        ),
        _STREAM,
        honoured("tools", TOOLS, "functions that the model may ask for"),
        _FORMAT,
        _THINK,
        _OPTIONS,
        *_LOGPROBS,
        common.KEEP_ALIVE,
        *_CUT,
        _TEMPLATE,
    ),
)
GENERATE: Final = Table(
    "OllamaGenerate",
    (
        _MODEL,
        honoured("prompt", Text(), "the question; none: the model is loaded, or unloaded"),
        honoured(
            "suffix", Text(), "what comes after the answer: the model fills in the middle (infill)"
        ),
        honoured("system", Text(), "how to answer", "the settings'"),
        honoured("raw", Flag(), "continue the prompt without a chat template", "false"),
        _STREAM,
        _FORMAT,
        _THINK,
        _OPTIONS,
        *_LOGPROBS,
        common.KEEP_ALIVE,
        _IMAGES,
        _TEMPLATE,
        refused("context", "send the conversation to /api/chat", ListOf(_COUNT, 0)),
        *_CUT,
    ),
)
_NO_OPTIONS: Final = honoured(
    "options", Table("EmbedOptions", ()), "accepted; none of them changes a vector"
)
EMBED: Final = Table(
    "OllamaEmbed",
    (
        _MODEL,
        honoured(
            "input",
            AnyOf((Text(), ListOf(Text(1), validate.MOST_TEXTS))),
            "a text, or an array of texts; empty: the model is loaded",
            required=True,
        ),
        honoured(
            "dimensions", Number(1, 65_536, whole=True), "keep this many first numbers", "all"
        ),
        honoured(
            "truncate",
            Flag(),
            "cut texts that exceed the context at their end; false: refuse them",
            "true",
        ),
        common.KEEP_ALIVE,
        _NO_OPTIONS,
    ),
)
EMBEDDINGS: Final = Table(
    "OllamaEmbeddings",
    (
        _MODEL,
        honoured("prompt", Text(), "the text; none: the model is loaded"),
        common.KEEP_ALIVE,
        _NO_OPTIONS,
    ),
)
SHOW: Final = Table(
    "OllamaShow",
    (
        _MODEL,
        honoured("verbose", Flag(), "arrays of the metadata too, such as the vocabulary", "false"),
    ),
)
PULL: Final = Table(
    "OllamaPull",
    (
        honoured(
            "model",
            Text(1, 256),
            "a model of the library, of the catalogue, or of the Hub: org/name or org/name:QUANT",
            required=True,
            aliases=("name",),
        ),
        honoured("stream", Flag(), "send the progress", "true"),
        without_effect("insecure", "downloads are always encrypted", OneOf((False,))),
    ),
)
DELETE: Final = Table(
    "OllamaDelete",
    (
        honoured(
            "model",
            Text(1, 256),
            "the name of a model of the library folder",
            required=True,
            aliases=("name",),
        ),
    ),
)
COPY: Final = Table(
    "OllamaCopy",
    (
        honoured("source", Text(1, 256), "the name of a model", required=True),
        honoured("destination", Text(1, 256), "the name of the copy", required=True),
    ),
)
