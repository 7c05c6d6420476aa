"""Trains guide and guide-draft from nothing but a seed.

``python -m hearth.assets.guide.train --recipe cpu --seed 7 --out DIR`` learns the vocabulary,
trains guide, then the draft, and leaves ``guide.f16.gguf`` and ``guide-draft.f16.gguf`` in DIR,
rewritten every few minutes while training runs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hearth.assets.guide.data import Drawer, HeldOut, Shard, Stream, load_source, text_sample
from hearth.assets.guide.export import Weights, load_weights, read_gguf, weights_of, write_gguf
from hearth.assets.guide.model import Block, Guide, output_loss
from hearth.assets.guide.recipe import RECIPES, Recipe, Stage
from hearth.assets.guide.tokenizer import from_vocabulary, train_tokenizer

QUESTIONS = Path(__file__).parent / "questions.jsonl"
MEASURED_STEPS = 30


@dataclass(frozen=True)
class Machine:
    """Where and how the arithmetic runs."""

    device: str
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 products where the machine gains from them, else nothing."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device, self.dtype)


def machine_for(recipe: Recipe) -> Machine:
    """The device of ``recipe`` and its dtype; "auto" means bf16 with CUDA or AMX, else f32."""
    fast = recipe.device == "cuda" or bool(torch.cpu._is_amx_tile_supported())
    bf16 = fast if recipe.precision == "auto" else recipe.precision == "bf16"
    return Machine(recipe.device, torch.bfloat16 if bf16 else torch.float32)


def orthogonalise(g: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices of g [n, rows, columns], roughly.

    Five Newton-Schulz steps (Keller Jordan's Muon, https://kellerjordan.github.io/posts/muon/).
    """
    x = g.transpose(1, 2) if g.shape[1] > g.shape[2] else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.transpose(1, 2) if g.shape[1] > g.shape[2] else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates for the matrices between embedding and output.

    Updates have the size of AdamW's (0.2 root-mean-square, arXiv 2502.16982).
    """

    def __init__(self, params: list[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Updates every matrix; those of one shape are orthogonalised together."""
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for shape, params in shapes.items():
                ahead = []
                for p in params:
                    assert p.grad is not None
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                    ahead.append(p.grad.lerp(state["momentum"], group["momentum"]))
                size = 0.2 * math.sqrt(max(shape))
                updates = orthogonalise(torch.stack(ahead))
                for p, update in zip(params, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"] * size)


def optimisers(model: Guide, stage: Stage) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the embedding and the norms."""
    matrices: list[Tensor] = [p for n, p in model.named_parameters() if p.ndim == 2 and "." in n]
    vectors: list[Tensor] = [p for n, p in model.named_parameters() if p.ndim == 1]
    rest = [
        {"params": [model.embedding], "weight_decay": 0.01},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [
        Muon(matrices, stage.lr, stage.weight_decay),
        torch.optim.AdamW(rest, lr=stage.lr_vectors, betas=(0.9, 0.95), eps=1e-10, fused=True),
    ]


def rate(step: int, steps: int, stage: Stage) -> float:
    """The share of the full learning rate at ``step`` of ``steps``: up, level, down to zero."""
    down = (steps - step) / max(1.0, stage.decay * steps)
    return min((step + 1) / stage.warmup_steps, 1.0, down)


def document_mask(docs: Tensor) -> Tensor:
    """docs: int [B, T] -> bool [B, 1, T, T]: earlier tokens of the same document."""
    t = docs.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool, device=docs.device).tril()
    return ((docs[:, :, None] == docs[:, None, :]) & causal)[:, None]


def batch_loss(
    model: Guide, shard: Shard, machine: Machine, teacher: Guide | None = None, share: float = 0.0
) -> tuple[Tensor, int]:
    """Summed loss of a batch of windows in nats, and the number of targets that it sums."""
    ids = torch.from_numpy(shard.ids.astype(np.int64)).to(machine.device)
    labels = torch.from_numpy(shard.labels.astype(np.int64)).flatten().to(machine.device)
    mask = document_mask(torch.from_numpy(shard.docs).to(machine.device))
    rows = (labels >= 0).nonzero()[:, 0]
    guidance = None
    with machine.autocast():
        if teacher is not None:
            with torch.no_grad():
                hidden = teacher(ids, mask, rows).to(machine.dtype)
                guidance = (hidden, teacher.embedding.to(machine.dtype), share)
        hidden = model(ids, mask, rows).to(machine.dtype)
    chunk = 512 if machine.device == "cpu" else 8192
    return output_loss(hidden, model.embedding, labels[rows], chunk, guidance), len(rows)


class Run:
    """One run: everything that guide's and the draft's training share."""

    def __init__(self, recipe: Recipe, seed: int, out: Path, source: str) -> None:
        self.recipe, self.seed, self.out, self.source = recipe, seed, out, source
        self.machine = machine_for(recipe)
        torch.set_num_threads(recipe.threads)
        torch.set_float32_matmul_precision("high")
        if recipe.compile:
            Block.attend = torch.compile(Block.attend, dynamic=False)  # type: ignore[method-assign]
            Block.feed = torch.compile(Block.feed, dynamic=False)  # type: ignore[method-assign]
        out.mkdir(parents=True, exist_ok=True)
        self.started = time.perf_counter()

    def say(self, text: str) -> None:
        """One progress line with the minutes since the start."""
        print(f"[{(time.perf_counter() - self.started) / 60:6.2f} min] {text}", flush=True)

    def learn_vocabulary(self) -> Tokenizer:
        """Trains the tokenizer on a sample of the corpus."""
        texts = text_sample(
            load_source(self.source),
            HeldOut.load(QUESTIONS),
            self.seed,
            self.recipe.tokenizer_characters,
        )
        tok = train_tokenizer(texts)
        characters = sum(map(len, texts[:2000]))
        tokens = sum(len(tok.encode(t).ids) for t in texts[:2000])
        self.say(
            f"vocabulary of {tok.get_vocab_size()}: {characters / tokens:.2f} characters/token"
        )
        return tok

    def batches(self, drawer: Drawer, stage: Stage, limit: list[int]) -> Iterator[Shard]:
        """The batches of all steps; ``limit[0]`` holds the number of steps, once known.

        Long windows come as whole batches, spread evenly over the last part of the run.
        """
        r = self.recipe
        name = stage.model.name
        short = Stream(f"{name}/short", r.window, 32768 // r.window * 4, False, r.user_share)
        long = Stream(f"{name}/long", r.long_window, 32768 // r.long_window, True, r.user_share)
        shorts = drawer.windows(short, stage.batch_tokens // r.window, r.shards)
        longs = drawer.windows(long, max(1, stage.batch_tokens // r.long_window), 4)
        for step in count():
            late = step - limit[0] * (1 - stage.long_last)
            wanted = max(0.0, late) * stage.long_share
            previous = max(0.0, late - 1) * stage.long_share
            yield next(longs if math.floor(wanted) > math.floor(previous) else shorts)

    def train(
        self,
        stage: Stage,
        tok: Tokenizer,
        drawer: Drawer,
        steps: int,
        minutes: float,
        teacher: Guide | None,
        start: Weights | None = None,
    ) -> Guide:
        """Trains one model and returns it; its GGUF file is in the output folder.

        ``steps``: how many, 0 for the recipe's budget; with ``minutes`` > 0 the first steps are
        timed and the number is chosen to end in time. ``start``: weights to go on from, in place
        of drawn ones.
        """
        config, machine = stage.model, self.machine
        model = Guide(config)
        model.init_weights(torch.Generator().manual_seed(self.seed))
        if start is not None:
            load_weights(model, start)
        model.to(machine.device)
        path = self.out / f"{config.name}.f16.gguf"
        steps = steps or max(1, stage.tokens // stage.batch_tokens)
        limit = [1 << 40 if minutes else steps]
        opts = optimisers(model, stage)
        per_batch = stage.batch_tokens // self.recipe.window
        probe = Stream("validation", self.recipe.window, per_batch, False, 0.0)
        check = drawer.draw(probe, 1)
        self.say(f"{config.name}: {config.parameters:,} parameters, {machine.dtype}, {steps} steps")
        begun = saved = time.perf_counter()
        busy: list[float] = []
        shown = 0.0
        parts = max(1, stage.batch_tokens // stage.micro_tokens)
        for step, batch in enumerate(self.batches(drawer, stage, limit)):
            at = time.perf_counter()
            if minutes and step == MEASURED_STEPS:
                drawing = (at - begun - sum(busy)) / step
                steps = int((minutes * 60 - (at - begun)) / (median(busy[5:]) * 1.03 + drawing))
                steps += step
                limit[0] = steps
                self.say(
                    f"{config.name}: {steps} steps for {minutes:g} minutes (--steps repeats it)"
                )
            targets = int((batch.labels >= 0).sum())
            share = stage.distill if step >= steps * (1 - stage.distill_last) else 0.0
            loss = torch.zeros((), device=machine.device)
            for rows in np.array_split(np.arange(len(batch.ids)), min(parts, len(batch.ids))):
                micro = Shard(batch.ids[rows], batch.labels[rows], batch.docs[rows])
                part, _ = batch_loss(model, micro, machine, teacher if share else None, share)
                (part / targets).backward()  # type: ignore[no-untyped-call]
                loss += part.detach() / targets
            torch.nn.utils.clip_grad_norm_(model.parameters(), stage.clip)
            for opt, full in zip(opts, (stage.lr, stage.lr_vectors), strict=True):
                for group in opt.param_groups:
                    group["lr"] = full * rate(step, steps, stage)
                opt.step()
                opt.zero_grad()
            value = float(loss)
            if not math.isfinite(value):
                raise FloatingPointError(f"loss is {value} at step {step}: lower the learning rate")
            shown = value if step == 0 else 0.95 * shown + 0.05 * value
            now = time.perf_counter()
            busy.append(now - at)
            done = step + 1
            if done % self.recipe.report_steps == 0 or done == steps:
                speed = done * stage.batch_tokens / (now - begun)
                left = (steps - done) * (now - begun) / done / 60
                self.say(
                    f"{config.name} step {done}/{steps} loss {shown:.3f} "
                    f"{speed:,.0f} tokens/s {left:.1f} min left"
                )
            if done % max(1, steps // 8) == 0 or done >= steps:
                self.say(f"{config.name} step {done}: validation {self.validate(model, check):.4f}")
            if now - saved > self.recipe.checkpoint_minutes * 60 or done >= steps:
                saved = now
                write_gguf(path, weights_of(model), tok, config, "f16")
            if done >= steps:
                break
        tokens = steps * stage.batch_tokens
        self.say(f"{config.name}: {tokens:,} tokens; drawn {drawer.counts}; {path}")
        return model

    @torch.no_grad()
    def validate(self, model: Guide, shard: Shard) -> float:
        """Mean loss in nats of the assistant's tokens in conversations not trained on."""
        total, targets = batch_loss(model, shard, self.machine)
        return float(total) / targets


def main() -> None:
    """Runs a recipe from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="cpu")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=0.0, help="of training, both models")
    parser.add_argument("--steps", type=int, default=0, help="of guide; repeats a timed run")
    parser.add_argument("--draft-steps", type=int, default=0)
    parser.add_argument("--source", default="", help="module:function, instead of the recipe's")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument(
        "--start", type=Path, help="a guide file to go on from, with its vocabulary"
    )
    parser.add_argument("--only", choices=["guide", "draft"], help="draft needs OUT/guide.f16.gguf")
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    if args.eager:
        recipe = replace(recipe, compile=False)
    source = args.source or recipe.source
    run = Run(recipe, args.seed, args.out, source)
    guide: Guide | None = None
    start: Weights | None = None
    if args.only == "draft":
        weights, vocab, config = read_gguf(args.out / "guide.f16.gguf")
        tok = from_vocabulary(vocab)
        guide = Guide(config)
        load_weights(guide, weights)
        guide.to(run.machine.device)
    elif args.start is not None:
        start, vocab, _ = read_gguf(args.start)
        tok = from_vocabulary(vocab)
    else:
        tok = run.learn_vocabulary()
    drawer = Drawer(source, QUESTIONS, tok, args.seed, recipe.threads)
    try:
        if args.only != "draft":
            minutes = args.minutes * (1 - recipe.draft_share)
            guide = run.train(recipe.guide, tok, drawer, args.steps, minutes, None, start)
        if args.only != "guide":
            minutes = args.minutes * recipe.draft_share
            run.train(recipe.draft, tok, drawer, args.draft_steps, minutes, guide)
    finally:
        drawer.close()


if __name__ == "__main__":
    main()
