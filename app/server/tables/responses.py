"""`POST /v1/responses`, stateless: every request contains the whole conversation."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import (
    Table,
    Tagged,
    honoured,
    refused,
    without_effect,
)
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Sentinel,
    Text,
)
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import (
    CALLED,
    EFFORT,
    FUNCTION,
    MOST_MESSAGES,
    MOST_TOOLS,
    NAME,
    PARALLEL_CALLS,
    allowed,
)
from hearth.app.server.tables.common import kind

_NO_STATE: Final = "nothing is stored; send the whole conversation"
_NO_SERVER_TOOLS: Final = "this server runs no tools; send functions"
_MOST_PARTS: Final = 1024

_ID: Final = without_effect("id", "nothing is stored", Text())
_STATUS: Final = without_effect("status", "items are used unchanged", Text())


def _text(name: str, field: str = "text") -> Table:
    return kind(
        name,
        honoured(field, Text(), "the text", required=True),
        without_effect("annotations", "sent back as they were received", ListOf(AnyObject(), 1024)),
        without_effect("logprobs", "sent back as they were received", ListOf(AnyObject(), 1 << 16)),
        without_effect("prompt_cache_breakpoint", "cached prefixes are found by their tokens"),
    )


_CONTENT: Final = AnyOf(
    (
        Text(),
        ListOf(
            Tagged(
                "type",
                {
                    "input_text": _text("input_text"),
                    "output_text": _text("output_text"),
                    "refusal": _text("refusal", "refusal"),
                },
                dict.fromkeys(("input_image", "input_file", "input_audio"), common.NO_MEDIA),
            ),
            _MOST_PARTS,
        ),
    )
)
_ITEM: Final = Tagged(
    "type",
    {
        "message": kind(
            "message",
            honoured(
                "role",
                OneOf(("user", "assistant", "system", "developer")),
                "the role of the author",
                required=True,
            ),
            honoured("content", _CONTENT, "a string, or an array of parts", required=True),
            _ID,
            _STATUS,
            without_effect("phase", "a label", Text()),
            required=False,
        ),
        "function_call": kind(
            "function_call",
            honoured("call_id", Text(1, 256), "referred to by the output", required=True),
            *CALLED,
            honoured("namespace", Text(longest=128), "the namespace of the function"),
            _ID,
            _STATUS,
            without_effect("caller", "the model is the only caller", AnyObject()),
        ),
        "function_call_output": kind(
            "function_call_output",
            honoured("call_id", Text(1, 256), "the id of the call", required=True),
            honoured("output", _CONTENT, "the result of the function", required=True),
            _ID,
            _STATUS,
            without_effect("caller", "the model is the only caller", AnyObject()),
        ),
        "reasoning": kind(
            "reasoning",
            honoured(
                "content",
                ListOf(
                    Tagged("type", {"reasoning_text": _text("reasoning_text")}, {}), _MOST_PARTS
                ),
                "the reasoning",
            ),
            without_effect("summary", "content is used", ListOf(AnyObject(), _MOST_PARTS)),
            without_effect("encrypted_content", "reasoning is not encrypted", Text()),
            _ID,
            _STATUS,
        ),
    },
    {
        "item_reference": _NO_STATE,
        "compaction": _NO_STATE,
        **dict.fromkeys(
            (
                *("custom_tool_call", "custom_tool_call_output", "local_shell_call"),
                *("local_shell_call_output", "shell_call", "shell_call_output", "mcp_call"),
                *("web_search_call", "file_search_call", "computer_call", "computer_call_output"),
                *("image_generation_call", "code_interpreter_call", "mcp_list_tools"),
                *("apply_patch_call", "apply_patch_call_output", "mcp_approval_request"),
                *("mcp_approval_response", "program", "program_output", "tool_search_call"),
            ),
            _NO_SERVER_TOOLS,
        ),
    },
    "message",
)
_FUNCTION: Final = kind(
    "function",
    *FUNCTION,
    without_effect("defer_loading", "functions are always in the prompt", OneOf((False,))),
    without_effect("output_schema", "outputs are not validated"),
    without_effect("allowed_callers", _NO_SERVER_TOOLS, ListOf(OneOf(("direct",)), 1)),
)
_TOOL: Final = Tagged(
    "type",
    {
        "function": _FUNCTION,
        "namespace": kind(
            "namespace",
            honoured("name", NAME, "the namespace that calls return", required=True),
            honoured(
                "tools",
                ListOf(Tagged("type", {"function": _FUNCTION}, {}, drops=True), MOST_TOOLS),
                "functions that the model can call",
                required=True,
            ),
            without_effect("description", "not in the prompt", Text()),
        ),
    },
    {},
    drops=True,
)
"""Tools of other types run on OpenAI's servers."""
_NAMED: Final = kind("function", honoured("name", NAME, "its name", required=True))
_TOOL_CHOICE: Final = AnyOf(
    (
        OneOf(("none", "auto", "required")),
        Tagged(
            "type",
            {
                "function": _NAMED,
                "allowed_tools": kind("allowed_tools", *allowed(_NAMED)),
            },
            {},
        ),
    )
)
_FORMAT: Final = Tagged(
    "type",
    {
        "text": kind("text"),
        "json_object": kind("json_object"),
        "json_schema": kind(
            "json_schema",
            honoured("schema", AnyObject(), "the schema", required=True),
            honoured("name", Text(), "a label, repeated in the response"),
            without_effect("description", "not in the prompt", Text()),
            without_effect("strict", "schemas are always followed", Flag()),
        ),
    },
    {"grammar": "use json_schema", "python": "use json_schema"},
)
_REASONING: Final = Table(
    "Reasoning",
    (
        EFFORT,
        without_effect("summary", "reasoning is returned in full", OneOf(("auto",))),
        without_effect("generate_summary", "the same as summary", OneOf(("auto",))),
        without_effect("context", "the template decides which reasoning is in the prompt"),
    ),
)

CREATE_RESPONSE: Final = Table(
    "CreateResponse",
    (
        common.MODEL,
        honoured(
            "input",
            AnyOf((Text(1), ListOf(_ITEM, MOST_MESSAGES, 1))),
            "the user's message, or the conversation so far",
            required=True,
        ),
        honoured("instructions", Text(), "the system prompt", "the settings'"),
        common.STREAM,
        without_effect("stream_options", "streams have no options", AnyObject()),
        honoured(
            "max_output_tokens",
            Sentinel(Number(1, 2**31 - 1, whole=True)),
            "the maximum of new tokens",
            "the settings'",
        ),
        *common.limits("min_tokens", "priority", "attention_sinks"),
        *common.sampling(),
        common.STOP,
        honoured(
            "include",
            ListOf(Text(1, 256), 64),
            "message.output_text.logprobs returns log probabilities; other values have no effect; "
            "reasoning is always returned",
        ),
        honoured(
            "top_logprobs",
            Number(0, 20, whole=True),
            "with log probabilities: also return this many alternatives",
            "0",
        ),
        honoured("tools", ListOf(_TOOL, MOST_TOOLS), "functions that the model can call"),
        honoured("tool_choice", _TOOL_CHOICE, "whether the model calls tools, and which", "auto"),
        PARALLEL_CALLS,
        honoured("reasoning", _REASONING, "how much to think"),
        honoured(
            "text",
            Table(
                "TextConfig",
                (
                    honoured("format", _FORMAT, "constrains the answer", "text"),
                    without_effect("verbosity", "ask for it in the prompt"),
                ),
            ),
            "options of the answer",
        ),
        honoured("metadata", MapOf(Text(longest=512), 16), "repeated in the response"),
        common.TRUNCATION,
        common.KEEP_ALIVE,
        common.USER,
        *(one for one in common.OPENAI_METADATA if one.name != "metadata"),
        without_effect("client_metadata", "nothing is stored"),
        without_effect("max_tool_calls", _NO_SERVER_TOOLS),
        without_effect("moderation", "answers are not moderated"),
        without_effect(
            "context_management", "the client trims the conversation", ListOf(AnyObject(), 0)
        ),
        refused("previous_response_id", _NO_STATE),
        refused("conversation", _NO_STATE),
        refused("prompt", _NO_STATE),
        refused("background", _NO_STATE, OneOf((False,))),
    ),
)
