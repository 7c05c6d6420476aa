"""Templates in the styles that models use give exactly the prompt that they should."""

import re

import pytest

from hearth.backends.errors import TemplateError
from hearth.backends.text.template import compile_template, render

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "Bye"},
]
NO_SYSTEM = CHAT[1:]

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """\
{% set loop_messages = messages %}
{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'\
+ message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{- content -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\
{% endif %}"""
MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{% endfor %}"""
GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'assistant' %}
{% generation %}
{{ '<|assistant|>\\n' + message['content'] + eos_token }}
{% endgeneration %}
{% else %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
QWEN3_LIKE = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
{%- if message.role == 'user' and ns.last < 0 %}{% set ns.last = loop.revindex0 %}{% endif %}
{%- if ns.last >= 0 %}{% break %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ ('*' if loop.index0 == ns.last else '') ~ '\\n' }}
{{- message.content.split('</think>')[-1].lstrip('\\n') ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""


def rendered(source, messages=CHAT, **options):
    return render(compile_template(source), messages, bos_token="<s>", eos_token="</s>", **options)


def test_chatml():
    assert rendered(CHATML) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert rendered(CHATML, add_generation_prompt=False).endswith("Bye<|im_end|>\n")


def test_llama_3():
    assert rendered(LLAMA3) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral():
    assert rendered(MISTRAL, NO_SYSTEM) == "<s>[INST] Hello [/INST] Hi!</s>[INST] Bye [/INST]"
    with pytest.raises(TemplateError, match="must alternate") as caught:
        rendered(MISTRAL)
    assert caught.value.data["reason"] == "refused"


def test_gemma():
    assert rendered(GEMMA, NO_SYSTEM) == (
        "<s><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\nHi!<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(TemplateError, match="System role not supported"):
        rendered(GEMMA)


def test_zephyr_with_generation_tags():
    assert rendered(ZEPHYR) == (
        "<|system|>\nBe brief.</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi!</s>\n"
        "<|user|>\nBye</s>\n<|assistant|>\n"
    )


def test_qwen_3_with_namespace_break_and_a_variable():
    chat = [CHAT[1], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi!"}, CHAT[3]]
    expected = (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user*\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(QWEN3_LIKE, chat) == expected
    assert rendered(QWEN3_LIKE, chat, extra={"enable_thinking": False}) == (
        expected + "<think>\n\n</think>\n\n"
    )


def test_tojson_keeps_characters_and_order():
    extra = {"tool": {"name": "é<b>&'", "args": [1, True, None]}}
    assert rendered("{{ tool|tojson }}", extra=extra) == (
        '{"name": "é<b>&\'", "args": [1, true, null]}'
    )
    assert rendered("{{ tool|tojson(indent=2) }}", extra=extra).startswith('{\n  "name"')


def test_strftime_now_tells_the_date():
    assert re.fullmatch(r"\d{1,2} \w+ \d{4}", rendered("{{ strftime_now('%d %B %Y') }}"))


def test_text_that_people_wrote_is_not_a_template():
    chat = [{"role": "user", "content": "{{ 7 * 7 }}{% for x in y %}"}]
    assert rendered("{{ messages[0].content }}", chat) == "{{ 7 * 7 }}{% for x in y %}"


def test_long_conversations_may_be_longer_than_what_a_template_may_add():
    long = [{"role": "user", "content": "é" * 2_000_000}]
    assert len(rendered("{{ '<' + messages[0].content + '>' }}", long)) == 2_000_002


def test_a_syntax_error_names_its_line():
    with pytest.raises(TemplateError, match="line 3") as caught:
        rendered("a\nb\n{% if %}")
    assert caught.value.data["reason"] == "syntax"
    assert caught.value.hint


def test_an_error_that_a_template_makes_of_half_characters_can_be_sent():
    with pytest.raises(TemplateError) as caught:
        render(compile_template("{{ raise_exception('\\ud800 no') }}"), CHAT)
    assert caught.value.message.encode() and "no" in caught.value.message
