"""Training Medusa heads (arXiv 2401.10774, section 2.2.1: the model itself does not change).

There are three phases. An interrupted phase continues from its file in the working folder:

    answers.jsonl      the model's answers to prompts, in lines {"prompt", "first", "ids"}
    hidden.f16         the last hidden states [tokens, W] of these answers, or of a given text
    state.safetensors  heads and optimizer state after a number of steps

Each head learns by cross entropy to predict a token further ahead. The loss of the head that looks
i tokens further ahead has weight 0.8^i.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hearth.backends.contract.events import Event, Failed
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sampler import Sampler
from hearth.backends.errors import HearthError, InvalidParameter, from_info
from hearth.backends.native.heads import HeadWeights, mixed
from hearth.backends.native.runner import NativeRunner
from hearth.kernels import device as devices
from hearth.quant.folders.layout import lay_out
from hearth.quant.safetensors import SafetensorsFile

WINDOW: Final = 512
"""Tokens of a piece of text."""
_DECAY: Final = 0.8
_BATCH: Final = 512
"""Tokens of a training step."""
_RATE: Final = 3e-3
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""AdamW's state tensors for each parameter."""
_WARM_UP: Final = 50
_SAVE_EVERY_S: Final = 15.0
_LEAST_TOKENS: Final = 256
_LEAST_WORDS: Final = 8
"""Words of a paragraph that is made into prompts."""
_UNHURRIED_S: Final = 1e6
"""Target inter-token latency: no user waits for these answers."""
_TEMPERATURES: Final = (0.0, 0.7)
"""Temperatures of answers, used alternately, because heads draft for both kinds of sampling."""
_WAYS: Final = (
    "{}",
    "Continue this text:\n\n{}",
    "Summarize this text:\n\n{}",
    "Copy this text and correct its mistakes:\n\n{}",
    "What is this about? Explain it to a beginner:\n\n{}",
    "Write a short story that contains this:\n\n{}",
)
"""Prompts about each paragraph of a text that does not consist of questions."""


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """What to train.

    Attributes:
        heads: number of heads, each of which predicts one token further ahead.
        blocks: blocks of each head.
        vocabulary: number of the most frequent tokens that the heads can predict.
        tokens: most tokens of text, or of answers.
        epochs: how often each token is seen.
        answer_tokens: most tokens of an answer.
        sessions: answers that are generated at the same time.
    """

    heads: int = 4
    blocks: int = 1
    vocabulary: int = 8192
    tokens: int = 200_000
    epochs: int = 4
    answer_tokens: int = 192
    sessions: int = 16
    seed: int = 1


Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total) several times a second; raises to stop the training."""


@dataclass(slots=True)
class Piece:
    """A text, as token ids."""

    ids: list[int]
    first: int = 1
    """Index of the first token to predict; the tokens before it are a prompt."""


@dataclass(slots=True)
class Trained:
    """The result of training.

    Attributes:
        accepted: for each head, the share of held-out positions at which it and all heads before
            it are right.
        tokens: tokens of the training text and answers.
    """

    weights: HeadWeights
    accepted: list[float]
    tokens: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each phase took in this run."""


def pieces_of(loaded: Loaded, text: str, plan: HeadsPlan) -> list[Piece]:
    """Split a text into windows."""
    ids = loaded.tokenizer.encode(text, special=False, add_bos=False)[: plan.tokens]
    begin = loaded.tokenizer.encode("", special=False, add_bos=True)
    step = WINDOW - len(begin)
    starts = range(0, len(ids), step)
    return [Piece([*begin, *ids[at : at + step]], max(1, len(begin))) for at in starts]


def prompts_of(text: str, *, are_questions: bool) -> list[str]:
    """Prompts made of a text: its lines if they are questions, else several per paragraph.

    Raises:
        InvalidParameter: there are no lines, or all paragraphs are too short.
    """
    if are_questions:
        prompts = [line.strip() for line in text.splitlines() if line.strip()]
    else:
        paragraphs = [one.strip() for one in text.split("\n\n")]
        long = [one for one in paragraphs if len(one.split()) >= _LEAST_WORDS]
        prompts = [way.format(one) for way in _WAYS for one in long]
    if not prompts:
        has = "no lines" if are_questions else f"no paragraph of at least {_LEAST_WORDS} words"
        raise InvalidParameter(
            "text", f"The text has {has}, so there is nothing to answer.", "Take a longer one."
        )
    return prompts


def train_heads(
    loaded: Loaded,
    texts: Sequence[Piece],
    prompts: Sequence[list[int]],
    plan: HeadsPlan,
    folder: Path,
    report: Progress,
) -> Trained:
    """Train heads for the model, which is open on the native runner.

    Args:
        texts: texts to learn from.
        prompts: token ids of prompts; the heads also learn from the model's answers to them.
        folder: where the phases store their progress; pass the same folder to continue.

    Raises:
        InvalidParameter: there is too little text, or all prompts are too long.
        HearthError: the model failed, or `report` raised it.
    """
    runner = loaded.runner
    assert isinstance(runner, NativeRunner)
    began = time.monotonic()
    pieces = list(texts)
    if prompts:
        pieces += _answers(loaded, prompts, plan, folder / "answers.jsonl", report)
    total = sum(len(one.ids) for one in pieces)
    if total < _LEAST_TOKENS:
        raise InvalidParameter(
            "text",
            f"{'Prompts and answers have' if prompts else 'The text has'} {total:,} tokens; at "
            f"least {_LEAST_TOKENS} are needed.",
            "Take a longer one.",
        )
    answered = time.monotonic()
    hidden = _hidden(runner, pieces, folder / "hidden.f16", report)
    computed = time.monotonic()
    vocabulary = _vocabulary(pieces, plan.vocabulary)
    places, targets = _targets(pieces, vocabulary, plan.heads)
    output = runner.decoder.output.rows(vocabulary.to(runner.plan.device)).cpu()
    weights, accepted = _fit(
        hidden, places, targets, output, plan, folder / "state.safetensors", report
    )
    seconds = {
        "answers": answered - began,
        "hidden states": computed - answered,
        "training": time.monotonic() - computed,
    }
    made = HeadWeights(weights[0], weights[1], None, vocabulary)
    return Trained(made, accepted, total, {name: round(one, 1) for name, one in seconds.items()})


def write_heads(weights: HeadWeights, path: Path) -> None:
    """Write heads in float16 for `read_heads`; the file gets its name once it is complete."""
    _write(
        {
            name: one if one.dtype == torch.int32 else one.to(torch.float16)
            for name, one in weights.named().items()
        },
        path,
    )


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file, which gets its name once it is complete."""
    kinds = {torch.float16: "F16", torch.int32: "I32", torch.float32: "F32"}
    [file] = lay_out(
        [[(name, kinds[one.dtype], tuple(one.shape)) for name, one in tensors.items()]],
        sum(one.nbytes for one in tensors.values()),
    ).files
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as stream:
        stream.write(file.header)
        for one in tensors.values():
            stream.write(one.contiguous().numpy().tobytes())
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


# ---- answers


def _answers(
    loaded: Loaded,
    prompts: Sequence[list[int]],
    plan: HeadsPlan,
    path: Path,
    report: Progress,
) -> list[Piece]:
    """Answers to `prompts`, up to `plan.tokens` tokens in all; reuses those stored in `path`."""
    shortest, most = min(map(len, prompts)), loaded.runner.info.context - plan.answer_tokens
    if shortest > most:
        raise InvalidParameter(
            "text",
            f"All {len(prompts):,} prompts are too long: the shortest has {shortest:,} tokens, and "
            f"at most {most:,} leave room for an answer of {plan.answer_tokens:,}.",
            "Take a text with shorter lines, each of which is a question.",
        )
    done = {one["prompt"]: Piece(one["ids"], one["first"]) for one in _lines(path)}
    tokens = sum(len(one.ids) - one.first for one in done.values())
    report("answers", min(tokens, plan.tokens), plan.tokens)
    if tokens < plan.tokens:
        wanted = [at for at in range(len(prompts)) if at not in done]
        order = np.random.default_rng(plan.seed).permutation(len(prompts))
        wanted.sort(key=lambda at: order[at])
        with path.open("a", encoding="utf-8") as stream:
            for at, text in _generated(loaded, prompts, wanted, plan):
                done[at] = text
                line = {"prompt": at, "first": text.first, "ids": text.ids}
                stream.write(json.dumps(line) + "\n")
                stream.flush()
                tokens += len(text.ids) - text.first
                report("answers", min(tokens, plan.tokens), plan.tokens)
                if tokens >= plan.tokens:
                    break
    return [done[at] for at in sorted(done)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file, which is truncated after them."""
    if not path.exists():
        return
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    os.truncate(path, len(whole))
    yield from map(json.loads, whole.splitlines())


def _generated(
    loaded: Loaded, prompts: Sequence[list[int]], wanted: Sequence[int], plan: HeadsPlan
) -> Iterator[tuple[int, Piece]]:
    """Yield (number of the prompt, its answer) as answers finish."""
    info = loaded.runner.info
    engine = Engine(loaded.runner, target_itl_s=_UNHURRIED_S)
    # The token that ends an answer is included in it.
    limits = Limits(
        plan.answer_tokens, 0, False, frozenset(), stop_ids=info.end_ids, include_stop=True
    )
    waiting = (at for at in wanted if len(prompts[at]) + plan.answer_tokens <= info.context)
    active: dict[int, Generation] = {}
    while True:
        for at in islice(waiting, plan.sessions - len(active)):
            temperature = _TEMPERATURES[at % len(_TEMPERATURES)]
            sampler = Sampler(SamplingParams(temperature=temperature, seed=plan.seed + at))
            active[at] = Generation(
                at, prompts[at], sampler, limits, (), loaded.tokenizer.piece, _raise_failure
            )
            engine.submit(active[at])
        if not active:
            return
        engine.run_once()
        for at, one in [(at, one) for at, one in active.items() if one.done]:
            del active[at]
            yield at, Piece(one.tokens, one.prompt_tokens)


def _raise_failure(event: Event) -> None:
    if isinstance(event, Failed):
        raise from_info(event.error)


# ---- hidden states


@torch.inference_mode()
def _hidden(
    runner: NativeRunner, pieces: Sequence[Piece], path: Path, report: Progress
) -> np.memmap[Any, Any]:
    """[tokens of all pieces, width] float16; pieces already in `path` are not computed again."""
    width = runner.info.embedding_width
    total = sum(len(one.ids) for one in pieces)
    held = path.stat().st_size // (2 * width) if path.exists() else 0
    done = 0
    with path.open("ab") as stream:
        for piece in pieces:
            end = done + len(piece.ids)
            if end > held:
                stream.truncate(2 * width * done)
                stream.seek(0, os.SEEK_END)
                hidden = runner.hidden_states(piece.ids).to(torch.float16)
                stream.write(hidden.cpu().numpy().tobytes())
                stream.flush()
                held = end
            done = end
            report("hidden states", done, total)
    return np.memmap(path, np.float16, "r", shape=(total, width))


def _vocabulary(pieces: Sequence[Piece], most: int) -> Tensor:
    """The most frequent tokens, ascending."""
    counts = Counter(token for piece in pieces for token in piece.ids[piece.first :])
    return torch.tensor(sorted(token for token, _ in counts.most_common(most)))


def _targets(pieces: Sequence[Piece], vocabulary: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Positions among the tokens of all pieces, [positions], and targets, [positions, heads].

    The target of a head is an index into `vocabulary`, or -1 if the position is not to be learned.
    """
    index = {int(token): at for at, token in enumerate(vocabulary)}
    places, targets, start = [], [], 0
    for piece in pieces:
        numbers = [index.get(token, -1) for token in piece.ids]
        # The token after `at` is drawn from the model's own logits; heads predict those after it.
        for at in range(piece.first - 1, len(piece.ids) - 2):
            ahead = numbers[at + 2 : at + 2 + heads]
            places.append(start + at)
            targets.append(ahead + [-1] * (heads - len(ahead)))
        start += len(piece.ids)
    return torch.tensor(places), torch.tensor(targets)


# ---- training


def _fit(
    hidden: np.memmap[Any, Any],
    places: Tensor,
    targets: Tensor,
    output: Tensor,
    plan: HeadsPlan,
    path: Path,
    report: Progress,
) -> tuple[tuple[Tensor, Tensor], list[float]]:
    """Train blocks and biases (see `HeadWeights`), and measure their acceptance.

    Acceptance is measured on the last twentieth of the positions, which is held out: for each head,
    the share at which it and all heads before it are right.
    """
    width, heads = hidden.shape[1], targets.shape[1]
    cut = max(1, len(places) // 20)
    is_bf16 = devices.multiplies(torch.device("cpu"), torch.bfloat16)
    matrix = output.to(torch.bfloat16 if is_bf16 else torch.float32)
    blocks = torch.zeros(plan.blocks, heads, width, width, requires_grad=True)
    biases = torch.zeros(plan.blocks, heads, 1, width, requires_grad=True)
    trained = [blocks, biases]
    optimizer = torch.optim.AdamW(trained, lr=_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    learned = len(places) - cut
    batches = -(-learned // _BATCH)
    steps = plan.epochs * batches
    begun = 0
    if path.exists():
        file = SafetensorsFile(path)
        state = {name: file.read(name).clone() for name in file.stored}
        file.close()
        begun = int(state["step"])
        with torch.no_grad():
            for index, one in enumerate(trained):
                one.copy_(state[f"{index}.weight"])
                moments = {name: state[f"{index}.{name}"] for name in _MOMENTS}
                optimizer.state[one] = {"step": state["step"].squeeze(0).clone(), **moments}

    def save(step: int) -> None:
        state = {"step": torch.tensor([float(step)])}
        for index, one in enumerate(trained):
            state[f"{index}.weight"] = one.detach()
            state |= {f"{index}.{name}": optimizer.state[one][name] for name in _MOMENTS}
        _write(state, path)

    def logits(at: Tensor) -> Tensor:
        rows = torch.from_numpy(np.asarray(hidden[at.numpy()], dtype=np.float32))
        x = mixed(rows, blocks, biases).flatten(0, 1)
        return F.linear(x.to(matrix.dtype), matrix).float()

    weights = _DECAY ** torch.arange(heads)
    saved = time.monotonic()
    step, order = begun, torch.empty(0)
    try:
        for step in range(begun, steps):
            epoch, batch = divmod(step, batches)
            if batch == 0 or step == begun:
                generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + epoch)
                order = torch.randperm(learned, generator=generator)
            chosen = order[batch * _BATCH : (batch + 1) * _BATCH]
            wanted = targets[chosen].t()
            losses = F.cross_entropy(
                logits(places[chosen]), wanted.flatten(), ignore_index=-1, reduction="none"
            ).view(heads, -1)
            loss = (losses.sum(dim=1) / (wanted >= 0).sum(dim=1).clamp(min=1) * weights).sum()
            rate = min(1.0, (step + 1) / _WARM_UP) * max(0.02, 1.0 - step / steps)
            optimizer.param_groups[0]["lr"] = _RATE * rate
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if time.monotonic() - saved > _SAVE_EVERY_S:
                save(step + 1)
                saved = time.monotonic()
            report("training", step + 1, steps)
        save(steps)
    except HearthError:  # Raised by `report` to stop.
        save(step + 1)
        raise
    sizes = [min(_BATCH, cut - at) for at in range(0, cut, _BATCH)]
    with torch.no_grad():
        right = [
            (logits(part_places).argmax(dim=-1).view(heads, -1).t() == part_targets).cumprod(dim=1)
            for part_places, part_targets in zip(
                torch.split_with_sizes(places[-cut:], sizes),
                torch.split_with_sizes(targets[-cut:], sizes),
                strict=True,
            )
        ]
    accepted = torch.cat(right).float().mean(dim=0).tolist()
    blocks = blocks.detach().transpose(-1, -2).contiguous()  # The layout of `nn.Linear`.
    return (blocks, biases.detach().squeeze(2)), [round(one, 4) for one in accepted]
