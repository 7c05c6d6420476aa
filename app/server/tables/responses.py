"""`POST /v1/responses`, without state: the whole conversation comes with every request."""

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
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    JsonText,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Text,
)
from hearth.app.server.tables import common
from hearth.app.server.tables.chat import EFFORTS, MOST_MESSAGES, MOST_TOOLS, NAME

_NO_MEDIA: Final = "models here read text alone for now"
_NO_STATE: Final = "nothing is stored here; send the whole conversation"
_NO_SERVER_TOOLS: Final = "this server runs no tools; offer functions"
_MOST_PARTS: Final = 1024

_ID: Final = without_effect("id", Text(longest=256), "items are known by their place")
_STATUS: Final = without_effect(
    "status", OneOf(("in_progress", "completed", "incomplete")), "items are taken as they are"
)


def _kind(kind: str, *fields: Parameter, required: bool = True) -> Table:
    first = honoured("type", OneOf((kind,)), "what it is", kind, required=required)
    return Table(kind, (first, *fields))


def _text(kind: str, field: str = "text") -> Table:
    return _kind(
        kind,
        honoured(field, Text(), "the text", required=True),
        without_effect("annotations", ListOf(AnyObject(), _MOST_PARTS), "answers get them back"),
        without_effect("logprobs", ListOf(AnyObject(), 1 << 16), "answers get them back"),
        without_effect(
            "prompt_cache_breakpoint", AnyObject(), "prefixes are found by their tokens"
        ),
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
                dict.fromkeys(("input_image", "input_file", "input_audio"), _NO_MEDIA),
            ),
            _MOST_PARTS,
        ),
    )
)
_ITEM: Final = Tagged(
    "type",
    {
        "message": _kind(
            "message",
            honoured(
                "role",
                OneOf(("user", "assistant", "system", "developer")),
                "whose message it is",
                required=True,
            ),
            honoured("content", _CONTENT, "text, or a list of parts", required=True),
            _ID,
            _STATUS,
            without_effect("phase", OneOf(("commentary", "final_answer")), "only a label"),
            required=False,
        ),
        "function_call": _kind(
            "function_call",
            honoured("call_id", Text(1, 256), "ties the output to it", required=True),
            honoured("name", NAME, "what was called", required=True),
            honoured("arguments", JsonText(), "a JSON object", required=True),
            _ID,
            _STATUS,
            without_effect("namespace", Text(longest=256), "only a label"),
            without_effect("caller", AnyObject(), "the model is the only caller"),
            refused("async", "calls are answered in the next request", OneOf((False,))),
        ),
        "function_call_output": _kind(
            "function_call_output",
            honoured("call_id", Text(1, 256), "which call it answers", required=True),
            honoured("output", _CONTENT, "what the function answered", required=True),
            _ID,
            _STATUS,
            without_effect("caller", AnyObject(), "the model is the only caller"),
        ),
        "reasoning": _kind(
            "reasoning",
            honoured(
                "content",
                ListOf(
                    Tagged("type", {"reasoning_text": _text("reasoning_text")}, {}), _MOST_PARTS
                ),
                "what was thought",
            ),
            without_effect("summary", ListOf(AnyObject(), _MOST_PARTS), "the thoughts count"),
            without_effect("encrypted_content", Text(), "thoughts are not encrypted here"),
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
_SERVER_TOOLS: Final = dict.fromkeys(
    (
        *("web_search", "web_search_2025_08_26", "web_search_preview", "file_search", "mcp"),
        *("web_search_preview_2025_03_11", "computer", "computer_use_preview", "custom", "shell"),
        *("code_interpreter", "image_generation", "local_shell", "apply_patch", "tool_search"),
        *("namespace", "programmatic_tool_calling"),
    ),
    _NO_SERVER_TOOLS,
)
_TOOL: Final = Tagged(
    "type",
    {
        "function": _kind(
            "function",
            honoured("name", NAME, "what the model calls it", required=True),
            honoured("description", Text(longest=16_384), "what it is for"),
            honoured("parameters", AnyObject(), "JSON schema of its arguments"),
            honoured("strict", Flag(), "arguments always follow the schema", "false"),
            refused("defer_loading", "functions are always shown", OneOf((False,))),
            without_effect("output_schema", AnyObject(), "outputs are given as they come"),
            refused("allowed_callers", _NO_SERVER_TOOLS, ListOf(OneOf(("direct",)), 1)),
        )
    },
    _SERVER_TOOLS,
)
_NAMED: Final = _kind("function", honoured("name", NAME, "which", required=True))
_TOOL_CHOICE: Final = AnyOf(
    (
        OneOf(("none", "auto", "required")),
        Tagged(
            "type",
            {
                "function": _NAMED,
                "allowed_tools": _kind(
                    "allowed_tools",
                    honoured("mode", OneOf(("auto", "required")), "may or must", required=True),
                    honoured(
                        "tools",
                        ListOf(Tagged("type", {"function": _NAMED}, _SERVER_TOOLS), MOST_TOOLS, 1),
                        "which of the tools",
                        required=True,
                    ),
                ),
            },
            _SERVER_TOOLS,
        ),
    )
)
_FORMAT: Final = Tagged(
    "type",
    {
        "text": _kind("text"),
        "json_object": _kind("json_object"),
        "json_schema": _kind(
            "json_schema",
            honoured("schema", AnyObject(), "the schema", required=True),
            honoured("name", Text(1, 64), "only a label, given back", required=True),
            without_effect("description", Text(longest=16_384), "not shown to models"),
            without_effect("strict", Flag(), "schemas are always followed"),
        ),
    },
    {"grammar": "use json_schema", "python": "use json_schema"},
)
_REASONING: Final = Table(
    "Reasoning",
    (
        honoured(
            "effort",
            OneOf((*EFFORTS, "max")),
            "how much to think, where the template can say so; max is xhigh",
        ),
        without_effect(
            "summary", OneOf(("auto", "concise", "detailed")), "thoughts are given as they are"
        ),
        without_effect(
            "generate_summary", OneOf(("auto", "concise", "detailed")), "the same as summary"
        ),
        without_effect("context", Text(longest=64), "thoughts are shown as the template does"),
        without_effect("mode", Text(longest=64), "there is one mode"),
    ),
)

CREATE_RESPONSE: Final = Table(
    "CreateResponse",
    (
        common.MODEL,
        honoured(
            "input",
            AnyOf((Text(1), ListOf(_ITEM, MOST_MESSAGES, 1))),
            "a question, or the conversation so far",
            required=True,
        ),
        honoured("instructions", Text(), "how to answer", "the settings' system prompt"),
        common.STREAM,
        without_effect(
            "stream_options",
            Table(
                "ResponseStreamOptions",
                (
                    refused(
                        "include_obfuscation",
                        "nobody between this server and its client could measure packets",
                        OneOf((False,)),
                    ),
                ),
            ),
            "there is nothing to choose",
        ),
        honoured(
            "max_output_tokens",
            Number(1, 2**31 - 1, whole=True),
            "at most this many new tokens",
            "the settings'",
        ),
        *common.limits("min_tokens", "priority"),
        *common.sampling(),
        common.STOP,
        honoured(
            "include",
            ListOf(
                OneOf(
                    ("message.output_text.logprobs", "reasoning.encrypted_content"),
                    dict.fromkeys(
                        (
                            *("file_search_call.results", "web_search_call.results"),
                            *("web_search_call.action.sources", "code_interpreter_call.outputs"),
                            *("message.input_image.image_url",),
                            *("computer_call_output.output.image_url",),
                        ),
                        _NO_SERVER_TOOLS,
                    ),
                ),
                16,
            ),
            "message.output_text.logprobs gives log probabilities; thoughts always come, and "
            "plain, so that reasoning.encrypted_content adds nothing",
        ),
        honoured("top_logprobs", Number(0, 20, whole=True), "with logprobs: so many others"),
        honoured("tools", ListOf(_TOOL, MOST_TOOLS), "functions that the model may ask for"),
        honoured("tool_choice", _TOOL_CHOICE, "whether it may, must, or which", "auto with tools"),
        honoured("parallel_tool_calls", Flag(), "more than one call in an answer", "true"),
        honoured("reasoning", _REASONING, "how much to think"),
        honoured(
            "text",
            Table(
                "TextConfig",
                (
                    honoured("format", _FORMAT, "what the answer must be", "text"),
                    without_effect(
                        "verbosity", OneOf(("low", "medium", "high")), "say it in the prompt"
                    ),
                ),
            ),
            "what the answer must be",
        ),
        honoured("metadata", MapOf(Text(longest=512), 16), "given back with the answer"),
        refused(
            "truncation",
            "a conversation that is too long is refused, never cut",
            OneOf(("disabled",)),
        ),
        common.KEEP_ALIVE,
        common.USER,
        *(one for one in common.OPENAI_METADATA if one.name != "metadata"),
        without_effect("max_tool_calls", Number(1, 2**31 - 1, whole=True), _NO_SERVER_TOOLS),
        without_effect("moderation", AnyObject(), "nobody is asked about the text"),
        refused("previous_response_id", _NO_STATE),
        refused("conversation", _NO_STATE),
        refused("prompt", _NO_STATE),
        refused("background", _NO_STATE, OneOf((False,))),
        refused("context_management", "trim the conversation yourself", ListOf(AnyObject(), 0)),
        refused("image", _NO_MEDIA),
        refused("access_programs", _NO_SERVER_TOOLS),
    ),
)
