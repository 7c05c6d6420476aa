"""`POST /v1/messages` and `/v1/messages/count_tokens` of Anthropic's API."""

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
from hearth.app.server.tables.chat import EFFORT, MOST_MESSAGES, MOST_TOOLS, NAME
from hearth.app.server.tables.common import kind
from hearth.backends.engine import validate

_NO_SERVER_TOOLS: Final = "this server runs no tools; send tools that the client runs"
_MOST_BLOCKS: Final = 4096

_CACHE: Final = honoured(
    "cache_control",
    kind(
        "ephemeral",
        honoured("ttl", OneOf(("5m", "1h")), "time since the last use", "5m"),
        title="CacheControl",
    ),
    "keep the KV cache up to the end of this message for a time after its last use",
)


def _block(name: str, *fields: Parameter) -> Table:
    return kind(name, *fields, title=f"{name} block")


_TEXT: Final = _block(
    "text",
    honoured("text", Text(), "the text", required=True),
    _CACHE,
    without_effect("citations", "answers have no citations", ListOf(AnyObject(), 0)),
)
_MEDIA: Final = dict.fromkeys(
    ("image", "document", "search_result", "container_upload"), common.NO_MEDIA
)
_SERVER_BLOCKS: Final = dict.fromkeys(
    ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use"),
    _NO_SERVER_TOOLS,
)
_TEXTS: Final = AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT}, _MEDIA), _MOST_BLOCKS)))
_TOOL_RESULT: Final = _block(
    "tool_result",
    honoured("tool_use_id", Text(1, 256), "the id of the tool call", required=True),
    honoured("content", _TEXTS, "the result of the tool"),
    honoured("is_error", Flag(), "the tool failed; adds Error: to the content", "false"),
    _CACHE,
)
_TOOL_USE: Final = _block(
    "tool_use",
    honoured("id", Text(1, 256), "referred to by the tool's result", required=True),
    honoured("name", NAME, "the tool", required=True),
    honoured("input", AnyObject(), "its arguments", required=True),
    _CACHE,
    without_effect("caller", "the model is the only caller", AnyObject()),
)
_THINKING: Final = _block(
    "thinking",
    honoured("thinking", Text(), "the reasoning", required=True),
    without_effect("signature", "reasoning is not signed", Text()),
)


_REDACTED: Final = _block(
    "redacted_thinking", without_effect("data", "encrypted reasoning cannot be read", Text())
)


def _content(**kinds: Table) -> Schema:
    refusals = {**_MEDIA, **_SERVER_BLOCKS}
    return AnyOf((Text(), ListOf(Tagged("type", {"text": _TEXT, **kinds}, refusals), _MOST_BLOCKS)))


def _message(role: str, content: Schema) -> Table:
    blocks = honoured("content", content, "a string, or an array of blocks", required=True)
    return kind(role, blocks, title=f"{role} message", key="role")


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
        "custom": kind(
            "custom",
            honoured("name", NAME, "the name", required=True),
            honoured("description", Text(), "what the tool does, for the model"),
            honoured("input_schema", AnyObject(), "JSON schema of the arguments", required=True),
            honoured("strict", Flag(), "constrain the arguments to the schema", "false"),
            _CACHE,
            without_effect(
                "eager_input_streaming", "arguments are streamed as they are generated", Flag()
            ),
            without_effect("input_examples", "not in the prompt"),
            without_effect("defer_loading", "tools are always in the prompt", OneOf((False,))),
            without_effect("allowed_callers", _NO_SERVER_TOOLS, ListOf(OneOf(("direct",)), 1)),
            title="custom tool",
            required=False,
        )
    },
    {},
    "custom",
    drops=True,
)
"""Tools of other types run on Anthropic's servers, or have schemas that only its models know."""


_PARALLEL: Final = honoured("disable_parallel_tool_use", Flag(), "at most one tool call", "false")
_NAMED: Final = honoured("name", NAME, "the tool", required=True)
_TOOL_CHOICE: Final = Tagged(
    "type",
    {
        "auto": kind("auto", _PARALLEL, title="choice auto"),
        "any": kind("any", _PARALLEL, title="choice any"),
        "none": kind("none", title="choice none"),
        "tool": kind("tool", _NAMED, _PARALLEL, title="choice tool"),
    },
    {},
)
_OF_THINKING: Final = (
    without_effect("display", "reasoning is returned in full", Text()),
    without_effect("budget_tokens", "max_tokens limits reasoning and answer together"),
)
_THINKING_CONFIG: Final = Tagged(
    "type",
    {
        name: kind(name, *_OF_THINKING, title=f"thinking {name}")
        for name in ("disabled", "adaptive", "enabled")
    },
    {},
)
_FORMAT: Final = kind(
    "json_schema",
    honoured("schema", AnyObject(), "the schema", required=True),
    title="OutputFormat",
)
_OUTPUT: Final = Table(
    "OutputConfig", (EFFORT, honoured("format", _FORMAT, "constrains the answer"))
)
_SHARED: Final = (
    common.MODEL,
    honoured("messages", MESSAGES, "the conversation so far", required=True),
    honoured("system", _TEXTS, "the system prompt", "the settings'"),
    honoured("tools", ListOf(_TOOL, MOST_TOOLS), "tools that the model can call"),
    honoured("tool_choice", _TOOL_CHOICE, "whether the model calls tools, and which", "auto"),
    honoured("thinking", _THINKING_CONFIG, "whether to think before the answer", "the model's"),
    honoured("output_config", _OUTPUT, "reasoning effort and format of the answer"),
    honoured("output_format", _FORMAT, "an older name of output_config.format"),
    _CACHE,
    without_effect("speed", "there is only one speed", OneOf(("standard",))),
    without_effect("user_profile_id", "there are no user profiles"),
    without_effect("workspace_id", "there are no workspaces"),
    without_effect("context_management", "the client trims the conversation"),
    without_effect("mcp_servers", _NO_SERVER_TOOLS, ListOf(AnyObject(), 0)),
    without_effect("container", _NO_SERVER_TOOLS),
    refused(
        "thread",
        "nothing is stored; send the whole conversation",
        # Anthropic's tool runner recognizes this code and continues without threads.
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
            "the maximum of new tokens",
            required=True,
        ),
        common.STREAM,
        honoured(
            "stop_sequences",
            ListOf(Text(longest=256), validate.MOST_STOPS),
            "end the answer before the first of these strings; empty ones are ignored",
        ),
        *common.sampling(),
        honoured(
            "metadata",
            Table("MessageMetadata", (honoured("user_id", Text(), common.USER.help),)),
            "properties of the request",
        ),
        common.KEEP_ALIVE,
        without_effect("service_tier", "there is only one tier", OneOf(("auto", "standard_only"))),
        without_effect("inference_geo", "models run on this machine"),
    ),
)
"""`POST /v1/messages`."""
