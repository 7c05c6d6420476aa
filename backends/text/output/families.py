"""Which family of models a chat template belongs to, and how that family writes its output."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from hearth.backends.contract.loaded import Capability
from hearth.backends.text.chat_templates import ChatTemplates, template_for
from hearth.backends.text.output.deepseek import DeepSeekFormat
from hearth.backends.text.output.generic import GenericFormat, Llama3Format
from hearth.backends.text.output.harmony import HarmonyFormat
from hearth.backends.text.output.hermes import HermesFormat
from hearth.backends.text.output.mistral import MistralFormat
from hearth.backends.text.output.qwen_coder import QwenCoderFormat
from hearth.backends.text.output.tagged_format import MakeId, OutputFormat, call_id, random_text
from hearth.backends.text.tokenizer import Tokenizer

_NO_TOKENS: Final[Mapping[str, int]] = MappingProxyType({})
_THOUGHTS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_LIST_TAGS: Final = (
    ("<tool_calls>", "</tool_calls>"),
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<|tool_call|>", ""),
)
"""Tags around a list of calls."""
_TALK_OF_THINKING: Final = (
    "<think>",
    "[THINK]",
    "enable_thinking",
    "reasoning_content",
    "reasoning_effort",
    "<|channel|>analysis",
)


def format_of(
    template: str | None,
    control_tokens: Mapping[str, int] = _NO_TOKENS,
    make_id: MakeId | None = None,
) -> OutputFormat:
    """How models with this chat template write reasoning and tool calls.

    Args:
        template: Jinja source; None: the model has none, and all its output is content.
        control_tokens: ids of the vocabulary's control tokens by their text; those in `markers`
            are enough. A grammar refers to these by id and to every other marker as text.
        make_id: returns the id of a new call; None: random ids in the form of the family.
    """
    template = template or ""
    think = _thoughts(template)
    is_mistral = "[TOOL_CALLS]" in template
    make_id = make_id or (partial(random_text, 9) if is_mistral else call_id)
    common = (control_tokens, make_id, think)
    if "<|channel|>" in template and "<|start|>" in template:
        return HarmonyFormat(control_tokens, make_id)
    if "<function=" in template and "<seed:" not in template:
        is_wrapped, is_json = "<tool_call>" in template, "<parameter=" not in template
        return QwenCoderFormat(*common, is_wrapped, is_json)
    if is_mistral:
        return MistralFormat(*common, is_named="[ARGS]" in template)
    if "<｜tool▁call▁begin｜>" in template:
        return DeepSeekFormat(*common, is_fenced="```json" in template)
    for tags in _LIST_TAGS:
        if tags[0] + "[" in template or (tags[0] in template and not tags[1]):
            return HermesFormat(*common, *tags, is_list=True)
    if _is_hermes(template):
        return HermesFormat(*common, "<tool_call>", "</tool_call>", is_list=False)
    is_llama = "<|start_header_id|>" in template and '"parameters"' in template
    if is_llama and takes_tools(template):
        return Llama3Format(*common)
    # If the template shows no tools, a model that was not trained on another form may write this.
    return GenericFormat(*common)


def described_format_of(
    template: str | None,
    control_tokens: Mapping[str, int] = _NO_TOKENS,
    make_id: MakeId | None = None,
) -> OutputFormat:
    """The format for models whose template shows no tools: the system prompt describes the tools
    and asks for generic JSON (`backends.text.described`). Arguments are those of `format_of`.
    """
    return GenericFormat(control_tokens, make_id or call_id, _thoughts(template or ""))


def takes_tools(template: str | None) -> bool:
    """Whether the template shows tools to the model."""
    return template is not None and _has_word(template, "tools")


def thinks(template: str | None) -> bool:
    """Whether the template mentions reasoning."""
    return template is not None and any(mark in template for mark in _TALK_OF_THINKING)


def capabilities_of(
    templates: ChatTemplates,
    tokenizer: Tokenizer,
    *,
    generates: bool,
    embeds: bool,
    ranks: bool,
) -> tuple[Capability, ...]:
    """The capabilities of a model, from its templates, its vocabulary and its runner."""
    template = template_for(templates, tools=False)
    can: dict[Capability, bool] = {
        "chat": generates and template is not None,
        "tools": generates and takes_tools(template_for(templates, tools=True)),
        "thinking": generates and thinks(template),
        "infill": generates and tokenizer.infill_ids is not None,
        "embed": embeds,
        "rank": ranks,
    }
    return tuple(capability for capability, is_possible in can.items() if is_possible)


def _thoughts(template: str) -> tuple[str, str] | None:
    """The tags around reasoning, if the template mentions them."""
    return next((tags for tags in _THOUGHTS if tags[1] in template), None)


def _is_hermes(template: str) -> bool:
    """Whether calls are JSON between tags; other families put something else between these tags."""
    others = ("<arg_key>", "<function=", "<parameter", "]<]minimax")
    return "<tool_call>" in template and not any(other in template for other in others)


def _has_word(text: str, word: str) -> bool:
    """Whether `word` is in `text` other than as part of a longer name."""
    at = text.find(word)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        if not any(char.isalnum() or char == "_" for char in (before + after)):
            return True
        at = text.find(word, at + 1)
    return False
