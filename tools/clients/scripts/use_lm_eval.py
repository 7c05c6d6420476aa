"""lm-eval: `local-completions` with the remote tokenizer, on a task made of local files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import API, MODEL, finish, step

folder = Path(tempfile.mkdtemp())
rows = [
    {"text": "The opposite of hot is", "options": ["cold", "blue"], "label": 0},
    {"text": "Two plus two is", "options": ["nine", "four"], "label": 1},
]
folder.joinpath("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
common = f"""\
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/rows.jsonl
test_split: test
doc_to_text: text
"""
folder.joinpath("choice.yaml").write_text(
    f"task: choice\n{common}output_type: multiple_choice\n"
    "doc_to_choice: options\ndoc_to_target: label\nmetric_list:\n  - metric: acc\n"
)
folder.joinpath("writing.yaml").write_text(
    f"task: writing\n{common}output_type: generate_until\n"
    'doc_to_target: "{{options[label]}}"\n'
    'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 8\n'
    "metric_list:\n  - metric: exact_match\n"
)


def evaluate(task: str, settings: str) -> None:
    command = [str(Path(sys.executable).with_name("lm_eval")), "--model", "local-completions"]
    command += ["--tasks", task, "--include_path", str(folder)]
    command += ["--model_args", f"model={MODEL},base_url={API}/completions,{settings}"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert task in out, out


@step("choice, remote tokenizer")
def _() -> None:
    evaluate("choice", "tokenizer_backend=remote,tokenized_requests=True")


@step("writing, remote tokenizer")
def _() -> None:
    evaluate("writing", "tokenizer_backend=remote,tokenized_requests=False")


finish()
