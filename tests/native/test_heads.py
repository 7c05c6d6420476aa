"""Medusa heads: their file, their guesses, and training them."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from driven import Driven
from fake_runner import FakeRunner
from hearth.assets import guide
from hearth.backends.contract.models import ModelSettings, ModelSpec, heads_path, is_heads
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.medusa import HeadsDrafter
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import CorruptFile, HearthError, InvalidParameter, UnsupportedModel
from hearth.backends.native.heads import HeadWeights, read_heads
from hearth.backends.native.heads_training import (
    HeadsPlan,
    Piece,
    prompts_of,
    train_heads,
    write_heads,
)
from hearth.backends.native.load import open_model
from hearth.backends.worker.drafting import open_heads
from speakers import drain, generation

GUIDE = Path(guide.__file__).parent / "guide.f16.gguf"
WIDTH, VOCAB = 256, 4096
SETTINGS = ModelSettings(context=512, threads=1, batch_threads=1)


@pytest.fixture(scope="module")
def loaded():
    model = open_model(ModelSpec(str(GUIDE), settings=SETTINGS))
    yield model
    model.runner.close()


class ResBlock(nn.Module):
    """As in the reference implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.nn.functional.silu(self.linear(x))


def reference_heads(blocks=1, heads=3):
    torch.manual_seed(1)
    return nn.ModuleList(
        nn.Sequential(*[ResBlock() for _ in range(blocks)], nn.Linear(WIDTH, VOCAB, bias=False))
        for _ in range(heads)
    )


@pytest.mark.parametrize("blocks", [1, 2])
@torch.inference_mode()
def test_original_heads_say_what_they_say_in_the_reference(blocks, tmp_path, loaded):
    reference = reference_heads(blocks)
    path = tmp_path / "medusa_lm_head.safetensors"
    save_file(reference.state_dict(), path)
    assert is_heads(path)
    weights = read_heads(path, WIDTH, VOCAB)
    found, _ = loaded.runner.load_heads(path)
    hidden = torch.randn(2, WIDTH)
    expected = torch.stack([head(hidden) for head in reference])
    torch.testing.assert_close(found.logits(hidden, 3), expected, rtol=0.02, atol=0.02)
    guessed = found.guesses(list(hidden), 2, 1)
    assert [[level[0][1] for level in one] for one in guessed] == (
        found.logits(hidden, 2).argmax(-1).t().tolist()
    )
    ours = tmp_path / "x.medusa.safetensors"
    write_heads(replace(weights, vocabulary=None), ours)
    again = read_heads(ours, WIDTH, VOCAB)
    torch.testing.assert_close(again.blocks, weights.blocks.half())
    assert again.outputs is not None
    assert weights.outputs is not None
    torch.testing.assert_close(again.outputs, weights.outputs.half())


@pytest.mark.parametrize("changes", [{}, {"dtype": "f32", "deterministic": True}])
@torch.inference_mode()
def test_heads_without_outputs_use_those_of_the_model(changes, tmp_path):
    """With a vocabulary, they use only its rows: the guess is the best of those tokens."""
    loaded = open_model(ModelSpec(str(GUIDE), settings=replace(SETTINGS, **changes)))
    zeros = torch.zeros(1, 2, WIDTH, WIDTH), torch.zeros(1, 2, WIDTH)
    ids = torch.tensor(sorted(random.Random(1).sample(range(VOCAB), 900)))
    hidden = loaded.runner.hidden_states([5, 6, 7])[-1:]
    whole = loaded.runner.decoder.logits(hidden)[0]
    for vocabulary in (None, ids):
        path = tmp_path / "x.medusa.safetensors"
        write_heads(HeadWeights(*zeros, None, vocabulary), path)
        heads, _ = loaded.runner.load_heads(path)
        best = whole.argmax() if vocabulary is None else ids[whole[ids].argmax()]
        assert [level[0][1] for level in heads.guesses([hidden[0]], 2, 4)[0]] == [int(best)] * 2
    loaded.runner.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t: t.pop("1.0.linear.bias"), CorruptFile),
        (lambda t: t.update({"model.norm.weight": torch.zeros(3)}), CorruptFile),
        (lambda t: t.update({"0.0.linear.weight": torch.zeros(8, 8)}), InvalidParameter),
        (lambda t: t.update({"2.1.weight": torch.zeros(VOCAB + 1, WIDTH)}), InvalidParameter),
        (lambda t: t.clear(), CorruptFile),
        (lambda t: t.update({"999999999.0.linear.weight": torch.zeros(8, 8)}), CorruptFile),
        (lambda t: t.update({f"{'9' * 5000}.0.linear.weight": torch.zeros(8, 8)}), CorruptFile),
        (lambda t: t.update({"7.1.weight": t.pop("2.1.weight")}), CorruptFile),
        (lambda t: t.update({"vocabulary": torch.tensor(5)}), CorruptFile),
    ],
)
def test_files_that_are_no_heads_of_this_model(change, error, tmp_path):
    tensors = dict(reference_heads().state_dict())
    change(tensors)
    path = tmp_path / "medusa_lm_head.safetensors"
    save_file(tensors, path)
    with pytest.raises(error):
        read_heads(path, WIDTH, VOCAB)
    with pytest.raises(UnsupportedModel, match="save_file"):
        read_heads(path.with_suffix(".pt"), WIDTH, VOCAB)


def test_steps_give_the_states_that_logits_are_made_of(loaded):
    loaded.runner.load_heads(heads_path(GUIDE))
    driven = Driven(loaded.runner)
    driven.cache.open(0, [1, 2, 3])
    assert driven.cache.reserve(0, 3)
    result = driven.step(StepPlan((Row(0, 0, [1, 2, 3], 2),)))
    with torch.inference_mode():
        logits = loaded.runner.decoder.logits(result.hidden)
    np.testing.assert_array_equal(logits.numpy(), result.logits[0])
    driven.cache.clear()


def test_the_bundled_heads_guess_for_guide(loaded):
    """A chat has the same text as without them, in fewer steps."""
    heads, trees = loaded.runner.load_heads(heads_path(GUIDE))
    prompt = loaded.tokenizer.encode(
        "<|user|>How do I download a model?<|end|><|assistant|>", special=True, add_bos=False
    )
    said, steps = [], []
    for mode in ("off", "medusa"):
        driven = Driven(loaded.runner)
        engine = driven.engine(drafters=[HeadsDrafter(heads, trees=trees)])
        speculating = Speculating("medusa", 6) if mode == "medusa" else None
        made, listener = generation(1, prompt, loaded.runner, tokens=40, speculating=speculating)
        engine.submit(made)
        drain(engine)
        said.append(listener.ids)
        steps.append(engine.stats().steps)
    assert said[0] == said[1]
    assert steps[1] < 0.7 * steps[0]


@pytest.mark.parametrize(
    ("settings", "here", "has_heads"),
    [
        ({"speculate": "medusa"}, True, True),
        ({"speculate": "auto"}, True, False),
        ({"speculate": "auto", "draft": str(heads_path(GUIDE))}, True, True),
        ({"speculate": "medusa"}, False, None),
        ({"speculate": "off", "draft": str(heads_path(GUIDE))}, False, True),
    ],
)
def test_who_gets_heads(settings, here, has_heads, loaded, tmp_path):
    """Those next to the model if the settings ask for them, or those that are named."""
    path = GUIDE if here else tmp_path / "other.gguf"
    spec = ModelSpec(str(path), settings=replace(SETTINGS, **settings))
    if has_heads is None:
        with pytest.raises(InvalidParameter, match="train-medusa"):
            open_heads(spec, loaded)
    else:
        assert bool(open_heads(spec, loaded)) == has_heads
    elsewhere = replace(loaded, runner=FakeRunner())
    if (settings["speculate"] == "medusa" and here) or settings.get("draft"):
        with pytest.raises(InvalidParameter, match="native"):
            open_heads(spec, elsewhere)
    elif has_heads is not None:
        assert not open_heads(spec, elsewhere)


class Killed(HearthError):
    code = "killed"


def test_training_learns_and_goes_on_where_it_was_killed(tmp_path, loaded):
    """Afterwards sequences of consecutive tokens are guessed."""
    rng = random.Random(2)
    pieces = []
    for _ in range(12):
        start = rng.randrange(1000)
        pieces.append(Piece([10 + (start + at) % 40 for at in range(120)]))
    plan = HeadsPlan(heads=2, epochs=40)
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    whole = train_heads(loaded, pieces, [], plan, folders[0], lambda phase, done, total: None)
    assert whole.accepted[0] > 0.5  # Of 40 consecutive tokens.

    def kill(phase, done, total):
        if (phase, done) in (("hidden states", 600), ("training", 17)):
            raise Killed("now", "")

    for _ in range(2):
        with pytest.raises(Killed):
            train_heads(loaded, pieces, [], plan, folders[1], kill)
    again = train_heads(loaded, pieces, [], plan, folders[1], lambda phase, done, total: None)
    torch.testing.assert_close(again.weights.blocks, whole.weights.blocks, rtol=1e-4, atol=1e-5)


def test_the_output_matrix_of_a_gpu_is_asked_there(tmp_path, loaded, monkeypatch):
    """Its rows are copied to the processor, where heads are trained."""
    runner = loaded.runner

    def rows(ids):
        assert ids.is_meta
        return SimpleNamespace(cpu=lambda: torch.zeros(len(ids), WIDTH))

    monkeypatch.setattr(runner, "plan", replace(runner.plan, device=torch.device("meta")))
    monkeypatch.setattr(runner.decoder.output, "rows", rows)
    pieces = [Piece([10 + at % 40 for at in range(300)])]
    plan = HeadsPlan(heads=1, epochs=1)
    made = train_heads(loaded, pieces, [], plan, tmp_path, lambda phase, done, total: None)
    assert made.tokens == 300


def test_a_text_without_prompts_that_can_be_answered(tmp_path, loaded):
    with pytest.raises(InvalidParameter, match="no paragraph of at least 8 words"):
        prompts_of("Too short.\n\nThis is, too.", are_questions=False)
    with pytest.raises(InvalidParameter, match="no lines"):
        prompts_of(" \n", are_questions=True)
    plan = HeadsPlan(answer_tokens=60)
    with pytest.raises(InvalidParameter, match="the shortest has 470 tokens, and at most 452"):
        train_heads(loaded, [], [[5] * 470, [5] * 500], plan, tmp_path, lambda *_: None)


def test_answers_are_not_made_twice(tmp_path, loaded):
    prompts = [
        loaded.tokenizer.encode(
            f"<|user|>What is {word}?<|end|><|assistant|>", special=True, add_bos=False
        )
        for word in "Hearth quantization GGUF llama temperature top-k top-p memory RAM".split()
    ]
    plan = HeadsPlan(heads=1, epochs=1, tokens=10_000, answer_tokens=60, sessions=3)

    def kill(phase, done, total):
        if done > 100:
            raise Killed("now", "")

    with pytest.raises(Killed):
        train_heads(loaded, [], prompts, plan, tmp_path, kill)
    path = tmp_path / "answers.jsonl"
    lines = path.read_bytes()
    path.write_bytes(lines + b'{"prompt": 5, "fir')
    made = train_heads(loaded, [], prompts, plan, tmp_path, lambda phase, done, total: None)
    assert path.read_bytes().startswith(lines)
    assert len(path.read_bytes().splitlines()) == len(prompts)
    assert made.tokens > 200
