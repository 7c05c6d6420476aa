"""`/api/...`: the fields of Ollama's API."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hearth.app.server.parameters import Parameter, Table, Tagged, honoured, refused, without_effect
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    JsonText,
    ListOf,
    Number,
    OneOf,
    Text,
)
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import EFFORTS, LOGPROBS, MOST_CALLS, MOST_MESSAGES, NAME, TOOLS
from hearth.backends.engine import validate

_OF_LOADING: Final = "the settings decide how a model is loaded"
_NEVER_CUT: Final = "prompts are not cut; one that is too long is an error"
_COUNT: Final = Number(-2, 2**31 - 1, whole=True)
_STREAM: Final = honoured("stream", Flag(), "send the answer while it is generated", "true")
_IMAGES: Final = refused("images", common.NO_MEDIA, ListOf(Text(), 0))
_TEMPLATE: Final = refused(
    "template", "templates come with models or from the settings", Text(longest=0)
)
_MODEL: Final = replace(common.MODEL, aliases=("name",))

OPTIONS: Final = Table(
    "Options",
    (
        honoured("num_predict", _COUNT, "the maximum of new tokens; negative: no limit"),
        honoured(
            "num_ctx",
            Number(1, 2**31 - 1, whole=True),
            "the maximum of tokens of prompt and answer; limited to the context of the loaded"
            " model, with a notice",
            "the context of the loaded model",
        ),
        *common.sampling(),
        common.STOP,
        without_effect("num_keep", _NEVER_CUT, OneOf((0, -1))),
        without_effect("draft_num_predict", "set draft_tokens (--draft-tokens) instead"),
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
    "whether or how much to think before the answer, if the chat template supports it",
    "the model's",
)
_TRUNCATE: Final = honoured(
    "truncate",
    Flag(),
    "of a conversation that exceeds the context: true leaves its oldest turns out, which is a "
    "notice; false is an error",
    "the setting context_overflow, or false",
)
_NO_TURNS: Final = without_effect("truncate", _NEVER_CUT, OneOf((False,)))
_SHIFT: Final = without_effect("shift", _NEVER_CUT, OneOf((False,)))

_CALL: Final = Table(
    "OllamaCall",
    (
        honoured("id", Text(longest=256), "referred to by the tool's result"),
        without_effect("type", "only functions are supported", OneOf(("function",))),
        honoured(
            "function",
            Table(
                "OllamaCalledFunction",
                (
                    honoured("name", NAME, "the function", required=True),
                    honoured(
                        "arguments",
                        AnyOf((AnyObject(), JsonText())),
                        "the arguments, or their JSON in a string",
                        required=True,
                    ),
                    without_effect("index", "calls are in order", Number(0, 1023, whole=True)),
                ),
            ),
            "the function and its arguments",
            required=True,
        ),
    ),
)


def _role(role: str, *fields: Parameter) -> Table:
    content = honoured("content", Text(), "the text")
    title = f"Ollama {role} message"
    return common.kind(role, content, _IMAGES, *fields, title=title, key="role")


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
                            honoured("thinking", Text(), "the reasoning before the answer"),
                            honoured("tool_calls", ListOf(_CALL, MOST_CALLS), "the tool calls"),
                        ),
                        "tool": _role(
                            "tool",
                            honoured(
                                "tool_name",
                                Text(longest=128),
                                "the tool",
                                aliases=("name",),
                            ),
                            honoured("tool_call_id", Text(longest=256), "the id of the tool call"),
                        ),
                    },
                    {},
                ),
                MOST_MESSAGES,
            ),
            "the conversation so far; empty: load the model, or unload it with keep_alive 0",
        ),
        _STREAM,
        honoured("tools", TOOLS, "functions that the model can call"),
        _FORMAT,
        _THINK,
        _OPTIONS,
        *LOGPROBS,
        common.KEEP_ALIVE,
        _TRUNCATE,
        _SHIFT,
        _TEMPLATE,
    ),
)
GENERATE: Final = Table(
    "OllamaGenerate",
    (
        _MODEL,
        honoured(
            "prompt",
            Text(),
            "the user's message; empty: load the model, or unload it with keep_alive 0",
        ),
        honoured("suffix", Text(), "the text after the answer: the model fills in the middle"),
        honoured("system", Text(), "the system prompt", "the settings'"),
        honoured("raw", Flag(), "continue the prompt without a chat template", "false"),
        _STREAM,
        _FORMAT,
        _THINK,
        _OPTIONS,
        *LOGPROBS,
        common.KEEP_ALIVE,
        _IMAGES,
        _TEMPLATE,
        refused("context", "send the conversation to /api/chat", ListOf(_COUNT, 0)),
        _NO_TURNS,
        _SHIFT,
    ),
)
_NO_OPTIONS: Final = honoured(
    "options", Table("EmbedOptions", ()), "options, none of which affects embeddings"
)
EMBED: Final = Table(
    "OllamaEmbed",
    (
        _MODEL,
        honoured(
            "input",
            AnyOf((Text(), ListOf(Text(1), validate.MOST_TEXTS))),
            "a string or an array of strings; empty: load the model",
            required=True,
        ),
        honoured(
            "dimensions",
            Number(1, 65_536, whole=True),
            "keep the first numbers of each vector, this many",
            "all",
        ),
        honoured(
            "truncate",
            Flag(),
            "truncate texts that exceed the context; false: refuse them",
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
        honoured("prompt", Text(), "the text; empty: load the model"),
        common.KEEP_ALIVE,
        _NO_OPTIONS,
    ),
)
SHOW: Final = Table(
    "OllamaShow",
    (
        _MODEL,
        honoured(
            "verbose", Flag(), "include arrays of the metadata, such as the vocabulary", "false"
        ),
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
