"""The output matrix: the embedding, or a separate one, as the files have it, whatever configs
declare.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hearth.quant.errors import CorruptFile
from loaded_weights import load_folder, shard
from native_decoders import decoder_of, logits_of
from tiny_checkpoints import tiny_checkpoint, tiny_model
from tiny_folders import WEIGHTS, Tensors, rewrite

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("stored", [(EMBEDDING,), (HEAD,), (EMBEDDING, HEAD)])
def test_a_tied_matrix_in_every_way(stored: tuple[str, ...], tmp_path: Path) -> None:
    folder = tiny_checkpoint("smollm2", tmp_path, tie_word_embeddings=True)
    expected = logits_of(decoder_of(folder), TEXT)

    def change(tensors: Tensors) -> None:
        matrix = tensors.pop(EMBEDDING)
        tensors.update({name: matrix.clone() for name in stored})

    decoder, report = load_folder(rewrite(folder, change))
    assert torch.equal(logits_of(decoder, TEXT), expected)
    assert report.skipped == ((HEAD,) if len(stored) == 2 else ())
    assert not report.unknown


@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
def test_a_tied_config_over_an_output_that_differs(prefix: str, tmp_path: Path) -> None:
    """From another training, or changed in only one number: transformers uses it."""
    model = tiny_model("smollm2", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / WEIGHTS)
    head = stored[EMBEDDING].clone()
    head[-1, -1] += 64.0
    renamed = {prefix + name.removeprefix("model."): one for name, one in stored.items()}
    shard(tmp_path, renamed | {HEAD: head}, [HEAD, *sorted(renamed)], 2)
    model.lm_head.weight = nn.Parameter(head)
    decoder, report = load_folder(tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0]
    assert (logits_of(decoder, TEXT) - expected).abs().max() < 1e-4
    assert not report.skipped and not report.unknown


def test_an_output_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny_checkpoint("smollm2", tmp_path, tie_word_embeddings=True)
    rewrite(folder, lambda tensors: tensors.update({HEAD: torch.ones(7, 64)}))
    with pytest.raises(CorruptFile, match=HEAD):
        load_folder(folder)


def test_a_matrix_of_its_own_for_the_output(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama3", tmp_path, tie_word_embeddings=False)
    decoder, _ = load_folder(folder)
    assert isinstance(decoder.output, nn.Linear)
    rewrite(folder, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CorruptFile, match=HEAD):
        load_folder(folder)
