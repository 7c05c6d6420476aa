"""Importance matrices of both runners compared with float64 sums of transformers' activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from converting import converted
from hearth.backends.native import importance as native
from hearth.backends.text.vocab import load as vocabularies
from hearth.quant.gguf import imatrix, preflight
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.imatrix import WINDOW_TOKENS, weighed
from hearth.quant.gguf.imatrix_sums import Sums, windows_of
from tiny_folders import tiny_folder

TEXT = "The cat sat on the mat, and the dog looked at 12 birds.\n" * 60
NAMES = {
    "self_attn.q_proj": ["attn_q", "attn_k", "attn_v"],
    "self_attn.o_proj": ["attn_output"],
    "mlp.gate_proj": ["ffn_gate", "ffn_up"],
    "mlp.down_proj": ["ffn_down"],
    "mlp.gate": ["ffn_gate_inp"],
}


class Reference:
    """Sums of squares of the inputs of each matrix, in float64, by the names of GGUF."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}

    def add(self, name, rows, expert=0, experts=1):
        squares = rows.double().square().sum(0).numpy()
        self.sums.setdefault(name, np.zeros((experts, len(squares))))[expert] += squares
        self.counts.setdefault(name, np.zeros(experts))[expert] += len(rows)

    def watch(self, model):
        for place, module in model.named_modules():
            _, _, rest = place.partition("model.layers.")
            layer, _, rest = rest.partition(".")
            if names := NAMES.get(rest):
                module.register_forward_pre_hook(self._dense(layer, names))
            elif rest == "mlp.experts":
                module.register_forward_pre_hook(self._experts(layer))

    def _dense(self, layer, names):
        def hook(_module, arguments):
            for name in names:
                self.add(f"blk.{layer}.{name}.weight", arguments[0].flatten(0, -2))

        return hook

    def _experts(self, layer):
        def hook(module, arguments):
            hidden, chosen = arguments[:2]
            count = len(module.down_proj)
            for expert in range(count):
                rows = hidden[(chosen == expert).any(-1)]
                gate, up = F.linear(rows, module.gate_up_proj[expert]).chunk(2, -1)
                for name in ("ffn_gate_exps", "ffn_up_exps"):
                    self.add(f"blk.{layer}.{name}.weight", rows, expert, count)
                name = f"blk.{layer}.ffn_down_exps.weight"
                self.add(name, F.silu(gate) * up, expert, count)

        return hook


def reference(folder):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager"
    )
    tokenizer = vocabularies.open_folder(folder, rows=model.config.vocab_size)
    found = Reference()
    found.watch(model)
    with torch.inference_mode():
        for window in windows_of(tokenizer.encode(TEXT, special=False, add_bos=False), []):
            model(torch.tensor([window]))
    return found


def written(collect, source, header, path, **options):
    """The matrix that a runner makes for `source`, read back from its file."""
    sums, seen = Sums(weighed(header.all_tensors)), []
    windows = collect(
        source,
        TEXT,
        sums,
        threads=1,
        on_window=lambda done, total: seen.append((done, total)),
        **options,
    )
    assert seen == [(n, windows) for n in range(1, windows + 1)] and windows > 1
    sums.write(path, dataset="cats", windows=windows)
    found = imatrix.read(path)
    assert (found.dataset, found.chunks) == ("cats", windows)
    assert set(found.entries) == set(weighed(header.all_tensors))
    return found


@pytest.mark.parametrize("family", ["llama3", "qwen3_moe"])
def test_sums_equal_those_in_float64(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(family, tmp_path / family)
    model = converted(folder, tmp_path / "model.gguf", "F32")
    header = preflight.check(model)
    expected = reference(folder)
    found = {
        "folder": written(native.collect, folder, header, tmp_path / "a.gguf", dtype="f32"),
        "gguf": written(native.collect, model, header, tmp_path / "b.gguf", dtype="f32"),
    }
    llama = pytest.importorskip("hearth.backends.llamacpp.importance")
    found["llama.cpp"] = written(llama.collect, model, header, tmp_path / "c.gguf")
    for runner, matrix in found.items():
        assert set(matrix.entries) == set(expected.sums)
        for name, sums in expected.sums.items():
            counts = expected.counts[name]
            means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], 1.0)
            values = matrix.columns(name).reshape(means.shape)
            np.testing.assert_allclose(values, means, 1e-4, 1e-9, err_msg=f"{runner} {name}")


def test_a_text_is_cut_into_windows_that_begin_as_the_model_wants() -> None:
    windows = windows_of(range(3 * WINDOW_TOKENS), [7])
    assert [len(one) for one in windows] == [WINDOW_TOKENS] * 3
    assert [one[:2] for one in windows] == [[7, 0], [7, 511], [7, 1022]]
    assert windows_of(range(100), []) == [list(range(100))]
    with pytest.raises(CannotQuantize, match="31 tokens"):
        windows_of(range(31), [7])


def test_what_is_no_finite_number_stops_the_pass(tmp_path: Path) -> None:
    sums = Sums(["a"])
    with pytest.raises(CannotQuantize, match="nothing to weigh"):
        sums.write(tmp_path / "none.gguf", dataset="", windows=1)
    rows = np.ones((2, 4), np.float32)
    sums.add(["a", "other"], rows, matrix=1, matrices=2)
    assert len(sums) == 1
    rows[1, 2] = np.inf
    with pytest.raises(CannotQuantize, match="finite"):
        sums.add(["a"], rows)
    sums.write(tmp_path / "im.gguf", dataset="", windows=1)
    assert imatrix.read(tmp_path / "im.gguf").columns("a").tolist() == [1.0] * 8
    assert [one.name for one in tmp_path.iterdir()] == ["im.gguf"]
