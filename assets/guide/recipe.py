"""The two ways to train guide: what a run of train.py is made of, as numbers in one place."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.assets.guide.model import ModelConfig


@dataclass(frozen=True)
class Stage:
    """How one model is trained.

    ``tokens``: budget, unless ``--minutes`` overrides it; ``batch_tokens``: per optimiser step;
    ``micro_tokens``: per forward pass; ``lr``: matrices, ``lr_vectors``: embedding and norms;
    ``warmup_steps``: of rising learning rate; ``decay``: share of
    the steps in which it falls to zero; ``long_share``: share of the windows that are
    long, taken in the last ``long_last`` of the steps; ``distill``: weight of the teacher's
    distribution in the targets (0 for none), used in the last ``distill_last`` of the steps.
    """

    model: ModelConfig
    tokens: int
    batch_tokens: int
    micro_tokens: int
    lr: float
    lr_vectors: float
    warmup_steps: int = 60
    decay: float = 0.7
    weight_decay: float = 0.1
    clip: float = 1.0
    long_share: float = 0.25
    long_last: float = 0.2
    distill: float = 0.0
    distill_last: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """A whole run: vocabulary, guide, then guide-draft.

    ``precision``: "auto" takes bf16 where matrix units make it faster (AMX, CUDA), else f32.
    ``minutes``: what the token budgets were sized for on ``machine``, drawing included.
    """

    name: str
    machine: str
    minutes: float
    guide: Stage
    draft: Stage
    source: str = "hearth.assets.guide.corpus.mixture:conversation"
    tokenizer_characters: int = 12_000_000
    window: int = 256
    long_window: int = 2048
    user_share: float = 0.15
    precision: str = "auto"
    device: str = "cpu"
    threads: int = 2
    compile: bool = False
    shards: int = 16
    report_steps: int = 20
    checkpoint_minutes: float = 5.0
    draft_share: float = 0.1
    """Share of ``--minutes`` that the draft gets."""


GUIDE = ModelConfig(name="guide", layers=4, ffn=768)
DRAFT = ModelConfig(name="guide-draft", hidden=128, layers=3, heads=2, kv_heads=1, ffn=256)

CPU = Recipe(
    name="cpu",
    machine="two cores with AVX-512",
    minutes=67,
    guide=Stage(GUIDE, 12_288_000, 4096, 4096, lr=0.006, lr_vectors=0.003),
    draft=Stage(DRAFT, 6_144_000, 4096, 4096, lr=0.006, lr_vectors=0.003),
)

GPU = Recipe(
    name="gpu",
    machine="one NVIDIA H100",
    minutes=30,
    guide=Stage(GUIDE, 600_000_000, 65_536, 65_536, lr=0.01, lr_vectors=0.003),
    draft=Stage(DRAFT, 300_000_000, 65_536, 65_536, lr=0.01, lr_vectors=0.003),
    device="cuda",
    threads=8,
    compile=True,
)

RECIPES = {r.name: r for r in (CPU, GPU)}
