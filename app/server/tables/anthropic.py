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
from hearth.app.server.tables.chat import EFFORTS, MOST_MESSAGES, MOST_TOOLS, NAME
from hearth.backends.engine import validate

_NO_MEDIA: Final = "models read text only"
_NO_SERVER_TOOLS: Final = "this server runs no tools; offer tools of your own"
_MOST_BLOCKS: Final = 4096

_CACHE: Final = honoured(
    "cache_control",
    Table(
        "CacheControl",
        (
            honoured("type", OneOf(("ephemeral",)), "what it is", required=True),
            honoured("ttl", OneOf(("5m", "1h")), "since its last use", "5m"),
        ),
    ),
    "keep the KV cache up to the end of this message, this long after its last use",
)


def _block(kind: str, *fields: Parameter) -> Table:
    first = honoured("type", OneOf((kind,)), "what it is", required=True)
    return Table(f"{kind} block", (first, *fields))


_TEXT: Final = _block(
    "text",
    honoured("text", Text(), "the text", required=True),
    _CACHE,
    without_effect("citations", "answers cite nothing", ListOf(AnyObject(), 0)),
)
_MEDIA: Final = dict.fromkeys(("image", "document", "search_result", "container_upload"), _NO_MEDIA)
_SERVER_BLOCKS: Final = dict.fromkeys(
    ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use"),
    _NO_SERVER_TOOLS,
)
_TEXTS: Final = AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT}, _MEDIA), _MOST_BLOCKS)))
_TOOL_RESULT: Final = _block(
    "tool_result",
    honoured("tool_use_id", Text(1, 256), "which call it answers", required=True),
    honoured("content", _TEXTS, "what the tool answered"),
    honoured("is_error", Flag(), "the tool failed; the model sees that", "false"),
    _CACHE,
)
_TOOL_USE: Final = _block(
    "tool_use",
    honoured("id", Text(1, 256), "ties the tool's answer to it", required=True),
    honoured("name", NAME, "what was called", required=True),
    honoured("input", AnyObject(), "its arguments", required=True),
    _CACHE,
    without_effect("caller", "the model is the only caller", AnyObject()),
)
_THINKING: Final = _block(
    "thinking",
    honoured("thinking", Text(), "what was thought", required=True),
    without_effect("signature", "thoughts are not signed here", Text()),
)


_REDACTED: Final = _block(
    "redacted_thinking", without_effect("data", "encrypted thoughts cannot be read here", Text())
)


def _content(**kinds: Table) -> Schema:
    refusals = {**_MEDIA, **_SERVER_BLOCKS}
    return AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT, **kinds}, refusals), _MOST_BLOCKS)))


def _message(role: str, content: Schema) -> Table:
    return Table(
        f"{role} message",
        (
            honoured("role", OneOf((role,)), "whose message it is", required=True),
            honoured("content", content, "a string, or an array of blocks", required=True),
        ),
    )


MESSAGES: Final = ListOf(
    Tagged(
        "role",
        {
            "user": _message("user", _content(tool_result=_TOOL_RESULT)),
            "assistant": _message(
                "assistant",
                _content(tool_use=_TOOL_USE, thinking=_THINKING, redacted_thinking=_REDACTED),
            ),
            "system": _message("system", _content()),
        },
        {},
    ),
    MOST_MESSAGES,
    1,
)

_TOOL: Final = Tagged(
    "type",
    {
        "custom": Table(
            "custom tool",
            (
                honoured("type", OneOf(("custom",)), "what it is", "custom"),
                honoured("name", NAME, "what the model calls it", required=True),
                honoured("description", Text(), "what it is for"),
                honoured(
                    "input_schema", AnyObject(), "JSON schema of its arguments", required=True
                ),
                honoured("strict", Flag(), "arguments always follow the schema", "false"),
                _CACHE,
                without_effect(
                    "eager_input_streaming", "arguments are streamed as they are generated", Flag()
                ),
                without_effect("input_examples", "not shown to models"),
                without_effect("defer_loading", "tools are always shown", OneOf((False,))),
                without_effect("allowed_callers", _NO_SERVER_TOOLS, ListOf(OneOf(("direct",)), 1)),
            ),
        )
    },
    {},
    "custom",
    drops=True,
)
"""Tools of other types run on a server, or have schemas that only Anthropic's models know."""


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


def _thinking(kind: str) -> Table:
    return Table(
        f"thinking {kind}",
        (
            honoured("type", OneOf((kind,)), "what it is", required=True),
            without_effect("display", "thoughts are returned as they are", Text()),
            without_effect(
                "budget_tokens", "models end their thoughts themselves; max_tokens bounds all of it"
            ),
        ),
    )


_THINKING_CONFIG: Final = Tagged(
    "type", {kind: _thinking(kind) for kind in ("disabled", "adaptive", "enabled")}, {}
)
_OUTPUT: Final = Table(
    "OutputConfig",
    (
        honoured(
            "effort",
            OneOf((*EFFORTS, "max")),
            "how much to think, where the template can express it; max is xhigh",
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
    without_effect("speed", "there is one speed", OneOf(("standard",))),
    without_effect("user_profile_id", "users are not known here"),
    without_effect("workspace_id", "users are not known here"),
    without_effect("context_management", "the client trims the conversation"),
    without_effect("mcp_servers", _NO_SERVER_TOOLS, ListOf(AnyObject(), 0)),
    without_effect("container", _NO_SERVER_TOOLS),
    refused(
        "thread",
        "nothing is stored here; send the whole conversation",
        # The name by which Anthropic's tool runner knows that it must do without.
        details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    ),
    without_effect("diagnostics", "see timings at /v1/chat/completions"),
)
COUNT_TOKENS: Final = Table("CountTokens", _SHARED)
"""`POST /v1/messages/count_tokens`."""

CREATE_MESSAGE: Final = Table(
    "CreateMessage",
    (
        *_SHARED,
        honoured(
            "max_tokens",
            Number(1, 2**31 - 1, whole=True),
            "at most this many tokens",
            required=True,
        ),
        common.STREAM,
        honoured(
            "stop_sequences",
            ListOf(Text(1, 256), validate.MOST_STOPS),
            "the answer ends before the first of these",
        ),
        *common.sampling(),
        honoured(
            "metadata",
            Table("MessageMetadata", (honoured("user_id", Text(), common.USER.help),)),
            "whom the request is for",
        ),
        common.KEEP_ALIVE,
        without_effect("service_tier", "there is one tier", OneOf(("auto", "standard_only"))),
        without_effect("inference_geo", "it is computed here"),
    ),
)
"""`POST /v1/messages`."""
