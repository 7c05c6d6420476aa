"""`/api/...`: the part of Ollama's own API that programs use to talk to models."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Parameter, Table, Tagged, honoured, refused, without_effect
from hearth.app.server.schema import AnyObject, AnyOf, Flag, ListOf, Number, OneOf, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import MOST_MESSAGES, NAME, TOOLS
from hearth.backends.engine import validate

_NO_MEDIA: Final = "models here read text alone for now"
_OF_LOADING: Final = "a request changes nothing of how a model is loaded; see hearth settings"
_COUNT: Final = Number(-2, 2**31 - 1, whole=True)
_STREAM: Final = honoured("stream", Flag(), "send the answer as it is written", "true")
_IMAGES: Final = refused("images", _NO_MEDIA, ListOf(Text(), 0))

OPTIONS: Final = Table(
    "Options",
    (
        honoured("num_predict", _COUNT, "at most so many new tokens; negative: no limit"),
        honoured(
            "num_ctx",
            Number(1, 2**31 - 1, whole=True),
            "refused if the loaded context holds fewer tokens",
        ),
        honoured("repeat_penalty", Number(0, 10, above_low=True), "repetition_penalty"),
        honoured("repeat_last_n", Number(-1, 2**31 - 1, whole=True), "repetition_window; -1: all"),
        *(one for one in common.sampling() if not one.name.startswith("repetition")),
        common.STOP,
        refused("num_keep", "prompts are never cut", OneOf((0, -1))),
        refused("draft_num_predict", "no model here has a drafter yet"),
        refused("mirostat", "use min_p or xtc", OneOf((0,))),
        refused("mirostat_tau", "use min_p or xtc"),
        refused("mirostat_eta", "use min_p or xtc"),
        refused("tfs_z", "use min_p or typical_p", OneOf((1, 1.0))),
        refused("penalize_newline", "penalties see every token"),
        *(
            refused(name, _OF_LOADING)
            for name in (
                *("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock"),
                *("numa", "low_vram", "f16_kv", "vocab_only", "logits_all"),
            )
        ),
    ),
)
_OPTIONS: Final = honoured("options", OPTIONS, "how tokens are drawn", "the settings'")
_FORMAT: Final = honoured(
    "format", AnyOf((OneOf(("json", "")), AnyObject())), "json, or a JSON schema of the answer"
)
_THINK: Final = honoured(
    "think",
    AnyOf((Flag(), OneOf(("low", "medium", "high")))),
    "think before the answer, where the template can say so",
    "the model's",
)
_RAW_TEMPLATE: Final = refused("template", "templates come with models or from the settings")

_CALL: Final = Table(
    "OllamaCall",
    (
        honoured("id", Text(longest=256), "ties the tool's answer to it"),
        without_effect("type", OneOf(("function",)), "calls are of functions"),
        honoured(
            "function",
            Table(
                "OllamaCalledFunction",
                (
                    honoured("name", NAME, "what was called", required=True),
                    honoured("arguments", AnyObject(), "its arguments", required=True),
                    without_effect("index", Number(0, 1023, whole=True), "calls stand in order"),
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
        common.MODEL,
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
                            honoured("tool_calls", ListOf(_CALL, 128), "what it called"),
                        ),
                        "tool": _role(
                            "tool",
                            honoured("tool_name", Text(longest=64), "which tool answers"),
                            honoured("name", Text(longest=64), "the same as tool_name"),
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
        common.KEEP_ALIVE,
        refused("truncate", "a conversation that is too long is refused", OneOf((False,))),
        refused("shift", "a conversation that is too long is refused", OneOf((False,))),
        refused("logprobs", "ask at /v1/chat/completions", OneOf((False,))),
        refused("top_logprobs", "ask at /v1/chat/completions", OneOf((0,))),
    ),
)
GENERATE: Final = Table(
    "OllamaGenerate",
    (
        common.MODEL,
        honoured("prompt", Text(), "the question; none: the model is loaded, or unloaded"),
        honoured("suffix", Text(), "what comes after the text to be found (infill); only with raw"),
        honoured("system", Text(), "how to answer", "the settings'"),
        honoured("raw", Flag(), "go on from the prompt as it stands, without a template", "false"),
        _STREAM,
        _FORMAT,
        _THINK,
        _OPTIONS,
        common.KEEP_ALIVE,
        _IMAGES,
        _RAW_TEMPLATE,
        refused("context", "send the conversation to /api/chat", ListOf(_COUNT, 0)),
        refused("truncate", "a prompt that is too long is refused", OneOf((False,))),
        refused("shift", "a prompt that is too long is refused", OneOf((False,))),
        refused("logprobs", "ask at /v1/completions", OneOf((False,))),
        refused("top_logprobs", "ask at /v1/completions", OneOf((0,))),
    ),
)
EMBED: Final = Table(
    "OllamaEmbed",
    (
        common.MODEL,
        honoured(
            "input",
            AnyOf((Text(1), ListOf(Text(1), validate.MOST_TEXTS, 1))),
            "a text or several",
            required=True,
        ),
        honoured("dimensions", Number(1, 65_536, whole=True), "keep the first so many", "all"),
        common.KEEP_ALIVE,
        refused("truncate", "a text that is too long is refused", OneOf((False,))),
        refused("options", _OF_LOADING, Table("NoOptions", ())),
    ),
)
SHOW: Final = Table(
    "OllamaShow",
    (
        common.MODEL,
        refused("verbose", "hearth show MODEL --verbose tells all metadata", OneOf((False,))),
    ),
)
