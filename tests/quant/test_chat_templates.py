"""The chat templates of a folder and of a GGUF, by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gguf_builder import tiny_llama
from hearth.backends.text.chat_templates import template_for
from hearth.backends.text.template import compile_template, render
from hearth.quant.convert.folder_files import chat_templates
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.reader import read_header
from tokenizer_folders import byte_level, write_folder

NAMED = [
    {"name": "tool_use", "template": "T{{ tools | length }}{{ pad_token }}"},
    {"name": "default", "template": "D{{ messages[0].content }}"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
MESSAGES = [{"role": "user", "content": "hi"}]


def test_they_are_found_wherever_folders_have_them(tmp_path: Path) -> None:
    assert chat_templates(tmp_path) == {}
    config = tmp_path / "tokenizer_config.json"
    both = {"tool_use": NAMED[0]["template"], "default": NAMED[1]["template"]}
    for value, expected in (("c", {"default": "c"}), (NAMED, both), (None, {}), ("", {})):
        config.write_text(json.dumps({"chat_template": value}))
        assert chat_templates(tmp_path) == expected
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "j"}))
    assert chat_templates(tmp_path) == {"default": "j"}
    (tmp_path / "chat_template.jinja").write_text("ünï", encoding="utf-8")
    assert chat_templates(tmp_path) == {"default": "ünï"}
    further = tmp_path / "additional_chat_templates"
    further.mkdir()
    (further / "tool_use.jinja").write_text("t")
    (further / "notes.txt").write_text("no template")
    assert chat_templates(tmp_path) == {"default": "ünï", "tool_use": "t"}
    (further / "rag.jinja").write_bytes(b"\xff")
    with pytest.raises(CorruptFile, match=r"rag\.jinja"):
        chat_templates(tmp_path)


@pytest.mark.parametrize("with_files", [False, True], ids=["a list", "files"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "with tools"])
def test_what_is_taken_is_what_transformers_takes(
    with_files: bool, tools: Any, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"pad_token": "<unk>", "eos_token": "</s>"}
    folder = write_folder(
        tmp_path / "model", byte_level(), tokenizer_config={**config, "chat_template": NAMED}
    )
    if with_files:
        (folder / "chat_template.jinja").write_text("File {{ messages[0].content }}")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ pad_token }}")
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
    template = template_for(chat_templates(folder), tools=tools is not None)
    assert template is not None
    assert (
        render(compile_template(template), MESSAGES, tools=tools, extra={"pad_token": "<unk>"})
        == expected
    )


def test_a_gguf_has_keys_for_them(tmp_path: Path) -> None:
    assert read_header(tiny_llama(tmp_path / "a.gguf", template=None)).chat_templates == {}
    key = "tokenizer.chat_template"
    extra: dict[str, Any] = {f"{key}.tool_use": "t", f"{key}.x": 1}
    header = read_header(tiny_llama(tmp_path / "b.gguf", template="d", extra=extra))
    assert header.chat_templates == {"tool_use": "t", "default": "d"}
    assert header.chat_template == "d"
