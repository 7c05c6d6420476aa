"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients send them."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import (
    Parameter,
    Table,
    Tagged,
    honoured,
    refused,
    without_effect,
)
from hearth.app.server.schema import AnyObject, AnyOf, Flag, ListOf, Number, OneOf, Schema, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import MOST_MESSAGES, MOST_TOOLS, NAME

_NO_MEDIA: Final = "models here read text alone for now"
_NO_SERVER_TOOLS: Final = "this server runs no tools; offer tools of your own"
_MOST_BLOCKS: Final = 4096

_CACHE: Final = honoured(
    "cache_control",
    Table(
        "CacheControl",
        (
            honoured("type", OneOf(("ephemeral",)), "what it is", required=True),
            honoured("ttl", OneOf(("5m", "1h")), "from its last use", "5m"),
        ),
    ),
    "keep what is computed up to the end of this message, so long from its last use",
)


def _block(kind: str, *fields: Parameter) -> Table:
    first = honoured("type", OneOf((kind,)), "what it is", required=True)
    return Table(f"{kind} block", (first, *fields))


_TEXT: Final = _block(
    "text",
    honoured("text", Text(), "the text", required=True),
    _CACHE,
    refused("citations", "answers cite nothing", ListOf(AnyObject(), 0)),
)
_MEDIA: Final = dict.fromkeys(("image", "document", "search_result", "container_upload"), _NO_MEDIA)
_SERVER_BLOCKS: Final = dict.fromkeys(
    ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use"),
    _NO_SERVER_TOOLS,
)
_TEXTS: Final = AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT}, _MEDIA), _MOST_BLOCKS)))
_NO_TOOLSETS: Final = without_effect("toolset_name", Text(longest=256), "only a label")
_TOOL_RESULT: Final = _block(
    "tool_result",
    honoured("tool_use_id", Text(1, 256), "which call it answers", required=True),
    honoured("content", _TEXTS, "what the tool answered"),
    honoured("is_error", Flag(), "the tool failed: the model is told so", "false"),
    _CACHE,
    _NO_TOOLSETS,
)
_TOOL_USE: Final = _block(
    "tool_use",
    honoured("id", Text(1, 256), "ties the tool's answer to it", required=True),
    honoured("name", NAME, "what was called", required=True),
    honoured("input", AnyObject(), "its arguments", required=True),
    _CACHE,
    without_effect("caller", AnyObject(), "the model is the only caller"),
    _NO_TOOLSETS,
)
_THINKING: Final = _block(
    "thinking",
    honoured("thinking", Text(), "what was thought", required=True),
    without_effect("signature", Text(), "thoughts are not signed here"),
)


def _content(**kinds: Table) -> Schema:
    refusals = {**_MEDIA, **_SERVER_BLOCKS, "redacted_thinking": "it cannot be read here"}
    return AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT, **kinds}, refusals), _MOST_BLOCKS)))


def _message(role: str, content: Schema) -> Table:
    return Table(
        f"{role} message",
        (
            honoured("role", OneOf((role,)), "whose message it is", required=True),
            honoured("content", content, "text, or a list of blocks", required=True),
        ),
    )


MESSAGES: Final = ListOf(
    Tagged(
        "role",
        {
            "user": _message("user", _content(tool_result=_TOOL_RESULT)),
            "assistant": _message("assistant", _content(tool_use=_TOOL_USE, thinking=_THINKING)),
            "system": _message("system", _content()),
        },
        {},
    ),
    MOST_MESSAGES,
    1,
)

_TOOL: Final = Table(
    "custom tool",
    (
        without_effect("type", OneOf(("custom",)), "the kind of tool that there is"),
        honoured("name", NAME, "what the model calls it", required=True),
        honoured("description", Text(longest=16_384), "what it is for"),
        honoured("input_schema", AnyObject(), "JSON schema of its arguments", required=True),
        honoured("strict", Flag(), "arguments always follow the schema", "false"),
        _CACHE,
        without_effect("eager_input_streaming", Flag(), "arguments come as they are written"),
        without_effect("input_examples", ListOf(AnyObject(), 64), "not shown to models"),
        refused("defer_loading", "tools are always shown", OneOf((False,))),
        refused("allowed_callers", _NO_SERVER_TOOLS, ListOf(OneOf(("direct",)), 1)),
    ),
)


def _choice(kind: str, *fields: Parameter) -> Table:
    parallel = honoured("disable_parallel_tool_use", Flag(), "one call at most", "false")
    first = honoured("type", OneOf((kind,)), "what it is", required=True)
    return Table(f"choice {kind}", (first, *fields, *([parallel] * (kind != "none"))))


_TOOL_CHOICE: Final = Tagged(
    "type",
    {
        "auto": _choice("auto"),
        "any": _choice("any"),
        "none": _choice("none"),
        "tool": _choice("tool", honoured("name", NAME, "which", required=True)),
    },
    {},
)


def _thinking(kind: str, *fields: Parameter) -> Table:
    first = honoured("type", OneOf((kind,)), "what it is", required=True)
    display = without_effect(
        "display", OneOf(("summarized", "omitted")), "thoughts are given as they are"
    )
    return Table(f"thinking {kind}", (first, *fields, *([display] * (kind != "disabled"))))


_THINKING_CONFIG: Final = Tagged(
    "type",
    {
        "disabled": _thinking("disabled"),
        "adaptive": _thinking("adaptive"),
        "enabled": _thinking(
            "enabled",
            without_effect(
                "budget_tokens",
                Number(1024, 2**31 - 1, whole=True),
                "models end their thoughts themselves; max_tokens bounds all of the answer",
            ),
        ),
    },
    {},
)
_OUTPUT: Final = Table(
    "OutputConfig",
    (
        honoured(
            "effort",
            OneOf(("low", "medium", "high", "xhigh", "max")),
            "how much to think, where the template can say so; max is xhigh",
        ),
        honoured(
            "format",
            Table(
                "OutputFormat",
                (
                    honoured("type", OneOf(("json_schema",)), "what it is", required=True),
                    honoured("schema", AnyObject(), "the schema", required=True),
                ),
            ),
            "what the answer must be",
        ),
    ),
)
_SHARED: Final = (
    common.MODEL,
    honoured("messages", MESSAGES, "the conversation so far", required=True),
    honoured("system", _TEXTS, "how to answer"),
    honoured("tools", ListOf(_TOOL, MOST_TOOLS), "functions that the model may ask for"),
    honoured("tool_choice", _TOOL_CHOICE, "whether it may, must, or which", "auto with tools"),
    honoured("thinking", _THINKING_CONFIG, "whether to think before the answer", "the model's"),
    honoured("output_config", _OUTPUT, "how much to think, what the answer must be"),
    _CACHE,
    without_effect("speed", OneOf(("standard", "fast")), "there is one speed"),
    without_effect("user_profile_id", Text(longest=256), "nobody is known here"),
    without_effect("workspace_id", Text(longest=256), "nobody is known here"),
)
COUNT_TOKENS: Final = Table("CountTokens", _SHARED)
"""`POST /v1/messages/count_tokens`."""

CREATE_MESSAGE: Final = Table(
    "CreateMessage",
    (
        *_SHARED,
        honoured(
            "max_tokens", Number(1, 2**31 - 1, whole=True), "at most so many tokens", required=True
        ),
        common.STREAM,
        honoured("stop_sequences", ListOf(Text(1, 256), 16), "the answer ends before the first"),
        *common.sampling(),
        honoured(
            "metadata",
            Table(
                "MessageMetadata",
                (honoured("user_id", Text(longest=256), "requests of one user take turns"),),
            ),
            "whom the request is for",
        ),
        common.KEEP_ALIVE,
        without_effect("service_tier", OneOf(("auto", "standard_only")), "there is one tier"),
        without_effect("inference_geo", Text(longest=64), "it is computed here"),
        refused("container", _NO_SERVER_TOOLS),
        refused("mcp_servers", _NO_SERVER_TOOLS, ListOf(AnyObject(), 0)),
        refused("context_management", "trim the conversation yourself"),
        refused("diagnostics", "see timings at /v1/chat/completions"),
    ),
)
"""`POST /v1/messages`."""
