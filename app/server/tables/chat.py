"""`POST /v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
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
    Number,
    OneOf,
    Schema,
    Text,
)
from hearth.app.server.tables import common
from hearth.app.server.tables.common import kind
from hearth.backends.engine import validate_chat

MOST_MESSAGES: Final = validate_chat.MOST_MESSAGES - 1
"""One less than the limit of the engine, because a default system message may precede them."""
MOST_CALLS: Final = validate_chat.MOST_CALLS
MOST_TOOLS: Final = validate_chat.MOST_TOOLS
NAME: Final = Text(1, 128, "^[A-Za-z0-9_-]{1,128}$")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
"""Values that chat templates know; clients may also write "max" for `HIGHEST_EFFORT`."""
HIGHEST_EFFORT: Final = EFFORTS[-1]
EFFORT: Final = honoured(
    "effort",
    OneOf((*EFFORTS, "max")),
    "how much to think, if the template supports it; max is xhigh",
)
LOGPROBS: Final = (
    honoured("logprobs", Flag(), "return the log probability of each token of the answer", "false"),
    honoured(
        "top_logprobs",
        Number(0, 20, whole=True),
        "with logprobs: also return this many alternatives",
        "0",
    ),
)
PARALLEL_CALLS: Final = honoured(
    "parallel_tool_calls", Flag(), "allow more than one tool call in an answer", "true"
)

_TEXT_PART: Final = kind(
    "text", honoured("text", Text(), "the text", required=True), title="TextPart"
)
_REFUSAL_PART: Final = kind(
    "refusal",
    honoured("refusal", Text(), "why the assistant did not answer", required=True),
    title="RefusalPart",
)


def _content(*, refusals: bool = False) -> Schema:
    kinds = {"text": _TEXT_PART}
    if refusals:
        kinds["refusal"] = _REFUSAL_PART
    media = dict.fromkeys(("image_url", "input_audio", "file", "video_url"), common.NO_MEDIA)
    return AnyOf((Text(), ListOf(Tagged("type", kinds, media), validate_chat.MOST_PARTS)))


CALLED: Final = Table(
    "CalledFunction",
    (
        honoured("name", NAME, "the function", required=True),
        honoured(
            "arguments",
            JsonText(),
            "a JSON object; for a call that was cut off, its beginning",
            required=True,
        ),
    ),
)
TOOL_CALL: Final = Tagged(
    "type",
    {
        "function": kind(
            "function",
            honoured("id", Text(longest=256), "referred to by the tool's result"),
            honoured("function", CALLED, "the function and its arguments", required=True),
            without_effect("index", "calls are in order", Number(0, 1023, whole=True)),
            title="FunctionCall",
            required=False,
        )
    },
    {"custom": "only functions are supported"},
    "function",
)
_NAME: Final = honoured("name", Text(longest=256), "name of the author, if the template uses it")


def _role(role: str, *fields: Parameter) -> Table:
    return kind(role, *fields, _NAME, title=f"{role.title()}Message", key="role")


MESSAGES: Final = ListOf(
    Tagged(
        "role",
        {
            "system": _role(
                "system", honoured("content", _content(), "the instructions", required=True)
            ),
            "developer": _role(
                "developer", honoured("content", _content(), "the same as system", required=True)
            ),
            "user": _role("user", honoured("content", _content(), "the text", required=True)),
            "assistant": _role(
                "assistant",
                honoured("content", _content(refusals=True), "the answer"),
                honoured("refusal", Text(), "a refusal; counts as content"),
                honoured("reasoning_content", Text(), "the reasoning before the answer"),
                honoured("reasoning", Text(), "the same as reasoning_content"),
                honoured("tool_calls", ListOf(TOOL_CALL, MOST_CALLS), "the tool calls"),
                refused("audio", common.NO_MEDIA),
                refused("function_call", "deprecated by OpenAI; use tool_calls"),
                without_effect(
                    "annotations", "sent back as they were received", ListOf(AnyObject(), 0)
                ),
            ),
            "tool": _role(
                "tool",
                honoured("content", _content(), "the result of the tool", required=True),
                honoured("tool_call_id", Text(1, 256), "the id of the tool call", required=True),
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
        honoured("name", NAME, "the name", required=True),
        honoured("description", Text(), "what the function does, for the model"),
        honoured("parameters", AnyObject(), "JSON schema of the arguments"),
        honoured("strict", Flag(), "constrain the arguments to the schema", "false"),
    ),
)
TOOLS: Final = ListOf(
    Tagged(
        "type",
        {
            "function": kind(
                "function",
                honoured("function", FUNCTION, "the function", required=True),
                title="Tool",
                required=False,
            )
        },
        {},
        "function",
        drops=True,
    ),
    MOST_TOOLS,
)
_NAMED: Final = Table("NamedFunction", (honoured("name", NAME, "its name", required=True),))
_NAMED_TOOL: Final = kind(
    "function", honoured("function", _NAMED, "the function", required=True), title="NamedTool"
)


def allowed(named: Table) -> tuple[Parameter, ...]:
    """The fields of a subset of the tools, each of which has the form `named`."""
    return (
        honoured(
            "mode",
            OneOf(("auto", "required")),
            "auto: the model may call one of them; required: it must",
            required=True,
        ),
        honoured(
            "tools",
            ListOf(Tagged("type", {"function": named}, {}), MOST_TOOLS, 1),
            "the tools that can be called",
            required=True,
        ),
    )


_ALLOWED: Final = kind(
    "allowed_tools",
    honoured(
        "allowed_tools",
        Table("AllowedToolList", allowed(_NAMED_TOOL)),
        "a subset of the tools",
        required=True,
    ),
    title="AllowedTools",
)
TOOL_CHOICE: Final = AnyOf(
    (
        OneOf(("none", "auto", "required")),
        Tagged(
            "type",
            {"function": _NAMED_TOOL, "allowed_tools": _ALLOWED},
            {"custom": "only functions are supported"},
        ),
    )
)


def _format(name: str, *fields: Parameter) -> Table:
    return kind(name, *fields, title=f"Format {name}", check_spelling=True)


_REGEX: Final = Text(1, 512, form="rust-regex")
_CHOICES: Final = ListOf(Text(1, 1024), 256, 1)
_GRAMMAR: Final = Text(1, 1 << 16)
_SCHEMA: Final = AnyOf((AnyObject(), JsonText(whole=True)))
"""A JSON schema, as an object or in a string."""
RESPONSE_FORMAT: Final = Tagged(
    "type",
    {
        "text": _format("text"),
        "json_object": _format(
            "json_object", honoured("schema", AnyObject(), "the same as json_schema")
        ),
        "json_schema": _format(
            "json_schema",
            honoured(
                "json_schema",
                Table(
                    "JsonSchema",
                    (
                        honoured("schema", AnyObject(), "the schema", required=True),
                        without_effect("name", "a label", Text()),
                        without_effect("description", "not shown to models", Text()),
                        without_effect("strict", "schemas are always followed", Flag()),
                    ),
                ),
                "the schema and its name",
            ),
            honoured("schema", AnyObject(), "the schema, if json_schema is left out"),
        ),
        "regex": _format(
            "regex",
            honoured("regex", _REGEX, "a regular expression in Rust's syntax", required=True),
        ),
        "choice": _format(
            "choice", honoured("choices", _CHOICES, "the possible answers", required=True)
        ),
        "grammar": _format(
            "grammar", honoured("grammar", _GRAMMAR, "a grammar in GBNF", required=True)
        ),
    },
    dict.fromkeys(("structural_tag", "python"), "use json_schema, regex, choice or grammar"),
)
CONSTRAINTS: Final = (
    honoured("response_format", RESPONSE_FORMAT, "constrains the answer", "text"),
    honoured(
        "structured_outputs",
        Table(
            "StructuredOutputs",
            (
                honoured("json", _SCHEMA, "JSON that follows this schema"),
                honoured("json_object", Flag(), "any JSON object"),
                honoured("regex", _REGEX, "a regular expression in Rust's syntax"),
                honoured("choice", _CHOICES, "the possible answers"),
                honoured("grammar", _GRAMMAR, "a grammar in GBNF"),
                refused("structural_tag", "use json, regex, choice or grammar"),
            ),
        ),
        "constrains the answer, as in vLLM; set one of its fields",
    ),
    honoured("guided_json", _SCHEMA, "older name of structured_outputs.json"),
    honoured("guided_regex", _REGEX, "older name of structured_outputs.regex"),
    honoured("guided_choice", _CHOICES, "older name of structured_outputs.choice"),
    honoured("guided_grammar", _GRAMMAR, "older name of structured_outputs.grammar"),
    honoured("grammar", _GRAMMAR, "a grammar in GBNF, as in llama.cpp"),
    honoured("json_schema", AnyObject(), "JSON that follows this schema, as in llama.cpp"),
)
"""The fields that constrain an answer; a request has at most one of them."""

TEMPLATE_KWARGS: Final = Table(
    "TemplateValues",
    (
        honoured("enable_thinking", Flag(), "think before the answer"),
        honoured("thinking", Flag(), "name of enable_thinking in DeepSeek's templates"),
        honoured("preserve_thinking", Flag(), "keep the reasoning of earlier turns in the prompt"),
        honoured("reasoning_effort", OneOf(EFFORTS), "how much to think"),
        honoured("documents", ListOf(AnyObject(), 64), "documents for retrieval templates"),
    ),
)
ADD_GENERATION_PROMPT: Final = honoured(
    "add_generation_prompt",
    Flag(),
    "end the prompt with the beginning of the assistant's turn",
    "true, unless continue_final_message is true",
)
CONTINUE: Final = honoured(
    "continue_final_message",
    Flag(),
    "continue the last message, which must be the assistant's",
    "true if the last message is the assistant's",
)

CHAT: Final = Table(
    "CreateChatCompletion",
    (
        common.MODEL,
        honoured("messages", MESSAGES, "the conversation so far", required=True),
        common.STREAM,
        common.STREAM_OPTIONS,
        *common.limits(
            *("max_tokens", "min_tokens", "n", "priority", "attention_sinks"),
            max_tokens=("max_completion_tokens",),
        ),
        *common.sampling(),
        common.STOP,
        *common.STOP_TOKENS,
        common.IGNORE_EOS,
        common.TRUNCATE,
        common.TRUNCATION,
        *LOGPROBS,
        common.PROMPT_LOGPROBS,
        common.RETURN_TOKEN_IDS,
        *CONSTRAINTS,
        honoured("tools", TOOLS, "functions that the model can call"),
        honoured("tool_choice", TOOL_CHOICE, "whether the model calls tools, and which", "auto"),
        PARALLEL_CALLS,
        replace(EFFORT, name="reasoning_effort"),
        honoured("chat_template_kwargs", TEMPLATE_KWARGS, "variables of the chat template"),
        CONTINUE,
        ADD_GENERATION_PROMPT,
        *common.COMPLETIONS,
        without_effect("moderation", "answers are not moderated"),
        without_effect("prediction", "predicted outputs are not used"),
        without_effect("verbosity", "ask for it in the prompt"),
        without_effect("web_search_options", "there is no web search"),
        refused("modalities", common.NO_MEDIA, ListOf(OneOf(("text",)), 1, 1)),
        refused("audio", common.NO_MEDIA),
        refused("functions", "deprecated by OpenAI; use tools", ListOf(AnyObject(), 0)),
        refused("function_call", "deprecated by OpenAI; use tool_choice", OneOf(("none", "auto"))),
        refused("chat_template", "templates come with models or from the settings"),
        refused("use_beam_search", "beam search is for /v1/completions", OneOf((False,))),
    ),
)
