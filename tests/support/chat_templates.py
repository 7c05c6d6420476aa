"""Short chat templates in the styles of model families, and a renderer in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from hearth.backends.text import template as templates

HERMES = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}<tools>
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
</tools> Answer in <tool_call></tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if m.reasoning_content and loop.last %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""
LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name }}
{{- '", "parameters": ' }}{{ call.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and m.role == 'user' and loop.last %}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
{%- endif %}
{{- m.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
MISTRAL = """\
{{- bos_token }}
{%- set ns = namespace(user=true) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + m.content + ', "id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids should have 9 letters') }}{% endif %}
{{- call.function | tojson + call.id + ', ' }}
{%- endfor %}
{{- ']' + eos_token }}
{%- else %}
{%- if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.user = not ns.user %}
{%- if m.role == 'user' %}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | string + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- else %}{{ m.content + eos_token }}{% endif %}
{%- endif %}
{%- endfor %}"""
DEEPSEEK = """\
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<|User|>' + m.content }}
{%- elif m.role == 'assistant' and m.content is none %}
{%- for call in m.tool_calls %}
{{- '<|call|>' + call.function.name + '\\n' + call.function.arguments + '<|end|>' }}
{%- endfor %}
{%- elif m.role == 'assistant' %}
{{- '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}
{%- elif m.role == 'tool' %}{{ '<|result|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""
CHATML = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
GEMMA = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') %}{{ raise_exception('unknown role') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
GRANITE = """\
{%- if tools %}{{ '<|tools|>' + tools | tojson(indent=4) }}{% endif %}
{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


class PlainRenderer:
    """Replaces `Renderer`, in this process; counts its renderings."""

    def __init__(self) -> None:
        self.renders = 0
        self._compiled = functools.lru_cache(templates.compile_template)

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        self.renders += 1
        return templates.render(
            self._compiled(template),
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            extra=extra or {},
        )

    def variables(self, template: str) -> frozenset[str]:
        return frozenset(templates.variables(template))
