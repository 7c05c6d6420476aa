"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Final

from hearth.app.server.parameters import Table, Tagged, honoured, refused, without_effect
from hearth.app.server.schema import (
    AnyObject,
    AnyOf,
    Flag,
    JsonText,
    ListOf,
    Number,
    OneOf,
    Schema,
    Text,
)
from hearth.app.server.tables import common

MOST_MESSAGES: Final = 2048
MOST_PARTS: Final = 1024
MOST_TOOLS: Final = 128
NAME: Final = Text(1, 64, "^[A-Za-z0-9_-]{1,64}$")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
"""What chat templates know; the most of them is `HIGHEST_EFFORT`, which clients also call max."""
HIGHEST_EFFORT: Final = EFFORTS[-1]

_NO_MEDIA: Final = "models here read text alone for now"
_TEXT_PART: Final = Table(
    "TextPart",
    (
        honoured("type", OneOf(("text",)), "what it is", required=True),
        honoured("text", Text(), "the text", required=True),
    ),
)
_REFUSAL_PART: Final = Table(
    "RefusalPart",
    (
        honoured("type", OneOf(("refusal",)), "what it is", required=True),
        honoured("refusal", Text(), "why the assistant did not answer", required=True),
    ),
)


def _content(*, refusals: bool = False) -> Schema:
    kinds = {"text": _TEXT_PART}
    if refusals:
        kinds["refusal"] = _REFUSAL_PART
    media = dict.fromkeys(("image_url", "input_audio", "file", "video_url"), _NO_MEDIA)
    return AnyOf((Text(), ListOf(Tagged("type", kinds, media), MOST_PARTS, 1)))


TOOL_CALL: Final = Tagged(
    "type",
    {
        "function": Table(
            "FunctionCall",
            (
                honoured("id", Text(1, 256), "ties the tool's answer to it", required=True),
                honoured("type", OneOf(("function",)), "what it is", "function"),
                honoured(
                    "function",
                    Table(
                        "CalledFunction",
                        (
                            honoured("name", NAME, "the function", required=True),
                            honoured("arguments", JsonText(), "a JSON object", required=True),
                        ),
                    ),
                    "what was called",
                    required=True,
                ),
                without_effect("index", Number(0, 1023, whole=True), "calls stand in order"),
            ),
        )
    },
    {"custom": "tools are functions here"},
    "function",
)
_NAME: Final = honoured("name", Text(longest=64), "who speaks, where the template can say so")
_ROLE = "whose message it is"


def _role(role: str, *fields: object) -> Table:
    parameters = (honoured("role", OneOf((role,)), _ROLE, required=True), *fields, _NAME)
    return Table(f"{role.title()}Message", parameters)  # type: ignore[arg-type]


MESSAGES: Final = ListOf(
    Tagged(
        "role",
        {
            "system": _role(
                "system", honoured("content", _content(), "how to answer", required=True)
            ),
            "developer": _role(
                "developer", honoured("content", _content(), "the same as system", required=True)
            ),
            "user": _role("user", honoured("content", _content(), "the question", required=True)),
            "assistant": _role(
                "assistant",
                honoured("content", _content(refusals=True), "the answer"),
                honoured("refusal", Text(), "a refusal; counts as content"),
                honoured("reasoning_content", Text(), "what it thought"),
                honoured("reasoning", Text(), "the same as reasoning_content"),
                honoured("tool_calls", ListOf(TOOL_CALL, MOST_TOOLS), "what it called"),
                refused("audio", _NO_MEDIA),
                refused("function_call", "deprecated by OpenAI; use tool_calls"),
                without_effect("annotations", ListOf(AnyObject(), 1024), "answers get them back"),
            ),
            "tool": _role(
                "tool",
                honoured("content", _content(), "what the tool answered", required=True),
                honoured("tool_call_id", Text(1, 256), "which call it answers", required=True),
            ),
        },
        {"function": "deprecated by OpenAI; use the role tool"},
    ),
    MOST_MESSAGES,
    1,
)

FUNCTION: Final = Table(
    "Function",
    (
        honoured("name", NAME, "what the model calls it", required=True),
        honoured("description", Text(longest=16_384), "what it is for"),
        honoured("parameters", AnyObject(), "JSON schema of its arguments"),
        honoured("strict", Flag(), "arguments always follow the schema", "false"),
    ),
)
TOOLS: Final = ListOf(
    Tagged(
        "type",
        {
            "function": Table(
                "Tool",
                (
                    honoured("type", OneOf(("function",)), "what it is", required=True),
                    honoured("function", FUNCTION, "the function", required=True),
                ),
            )
        },
        {"custom": "tools are functions here"},
    ),
    MOST_TOOLS,
)
_NAMED: Final = Table("NamedFunction", (honoured("name", NAME, "which", required=True),))
_NAMED_TOOL: Final = Table(
    "NamedTool",
    (
        honoured("type", OneOf(("function",)), "what it is", required=True),
        honoured("function", _NAMED, "the function", required=True),
    ),
)
_ALLOWED: Final = Table(
    "AllowedTools",
    (
        honoured("type", OneOf(("allowed_tools",)), "what it is", required=True),
        honoured(
            "allowed_tools",
            Table(
                "AllowedToolList",
                (
                    honoured("mode", OneOf(("auto", "required")), "may or must", required=True),
                    honoured(
                        "tools",
                        ListOf(Tagged("type", {"function": _NAMED_TOOL}, {}), MOST_TOOLS, 1),
                        "which of the tools",
                        required=True,
                    ),
                ),
            ),
            "some of the tools",
            required=True,
        ),
    ),
)
TOOL_CHOICE: Final = AnyOf(
    (
        OneOf(("none", "auto", "required")),
        Tagged(
            "type",
            {"function": _NAMED_TOOL, "allowed_tools": _ALLOWED},
            {"custom": "tools are functions here"},
        ),
    )
)

_FORMAT_TYPE = "what the answer must be"


def _format(kind: str, *fields: object) -> Table:
    first = honoured("type", OneOf((kind,)), _FORMAT_TYPE, required=True)
    return Table(f"Format {kind}", (first, *fields))  # type: ignore[arg-type]


RESPONSE_FORMAT: Final = Tagged(
    "type",
    {
        "text": _format("text"),
        "json_object": _format("json_object"),
        "json_schema": _format(
            "json_schema",
            honoured(
                "json_schema",
                Table(
                    "JsonSchema",
                    (
                        without_effect("name", Text(longest=64), "only a label"),
                        without_effect("description", Text(longest=16_384), "not shown to models"),
                        honoured("schema", AnyObject(), "the schema", required=True),
                        without_effect("strict", Flag(), "schemas are always followed"),
                    ),
                ),
                "the schema and its name",
                required=True,
            ),
        ),
        "regex": _format(
            "regex",
            honoured(
                "regex",
                Text(1, 512, form="rust-regex"),
                "Rust's regular expressions",
                required=True,
            ),
        ),
        "choice": _format(
            "choice",
            honoured("choices", ListOf(Text(1, 1024), 256, 1), "one of these", required=True),
        ),
    },
    {
        "grammar": "use json_schema, regex or choice",
        "structural_tag": "use json_schema, regex or choice",
        "python": "use json_schema, regex or choice",
    },
)

TEMPLATE_KWARGS: Final = Table(
    "TemplateValues",
    (
        honoured("enable_thinking", Flag(), "think before the answer"),
        honoured("thinking", Flag(), "the same in DeepSeek's templates"),
        honoured("preserve_thinking", Flag(), "show the model what it thought in earlier turns"),
        honoured("reasoning_effort", OneOf(EFFORTS), "how much to think"),
        honoured("documents", ListOf(AnyObject(), 64), "texts for templates that ground answers"),
    ),
)

CHAT: Final = Table(
    "CreateChatCompletion",
    (
        common.MODEL,
        honoured("messages", MESSAGES, "the conversation so far", required=True),
        common.STREAM,
        common.STREAM_OPTIONS,
        *common.limits("max_tokens", "min_tokens", "n", "priority"),
        honoured(
            "max_completion_tokens", Number(1, 2**31 - 1, whole=True), "OpenAI's new max_tokens"
        ),
        *common.sampling(),
        common.STOP,
        common.IGNORE_EOS,
        honoured("logprobs", Flag(), "log probability of each token of the answer", "false"),
        honoured("top_logprobs", Number(0, 20, whole=True), "and so many others; with logprobs"),
        honoured("response_format", RESPONSE_FORMAT, "what the answer must look like", "text"),
        honoured("tools", TOOLS, "functions that the model may ask for"),
        honoured("tool_choice", TOOL_CHOICE, "whether it may, must, or which", "auto with tools"),
        honoured("parallel_tool_calls", Flag(), "more than one call in an answer", "true"),
        honoured(
            "reasoning_effort",
            OneOf((*EFFORTS, "max")),
            "how much to think, where the template can say so; max is xhigh",
        ),
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        honoured(
            "continue_final_message",
            Flag(),
            "a last message of the assistant is the beginning of the answer",
            "true",
        ),
        common.CACHE_PROMPT,
        common.RETURN_PROGRESS,
        common.KEEP_ALIVE,
        common.USER,
        *common.OPENAI_METADATA,
        without_effect("moderation", AnyObject(), "nobody is asked about the text"),
        without_effect("prediction", AnyObject(), "answers are the same with it"),
        without_effect("verbosity", OneOf(("low", "medium", "high")), "say it in the prompt"),
        refused("modalities", _NO_MEDIA, ListOf(OneOf(("text",)), 1, 1)),
        refused("audio", _NO_MEDIA),
        refused("web_search_options", "this server opens no connections for a request"),
        refused("functions", "deprecated by OpenAI; use tools", ListOf(AnyObject(), 0)),
        refused("function_call", "deprecated by OpenAI; use tool_choice", OneOf(("none", "auto"))),
        refused("chat_template", "templates come with models or from the settings"),
        refused("grammar", "use response_format"),
        refused("guided_json", "use response_format"),
        refused("guided_regex", "use response_format"),
        refused("guided_choice", "use response_format"),
        refused("use_beam_search", "there is no beam search yet"),
        refused("beam_width", "there is no beam search yet"),
    ),
)
