"""What is measured, and what came of it: the types between a front end, which sends one `Job`, and
the measuring process, which answers with `Message`s.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal

from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import KvType, ModelSpec
from hearth.backends.contract.sampling import Speculate

TestKind = Literal["pp", "tg", "depth", "sessions", "shared"]
Means = Literal["nothing", "KV cache", "prefix reuse", "fused calls", "quantization"]
"""What can be switched off."""
TEST_KINDS: tuple[TestKind, ...] = ("pp", "tg", "depth", "sessions", "shared")
ReferenceName = Literal["transformers"]
REFERENCES: tuple[ReferenceName, ...] = ("transformers",)
"""Libraries that the native runner can be measured beside."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. The model is loaded with the settings of `spec`, apart from its context,
    sessions and pool, which are made as large as the tests need them.
    """

    spec: ModelSpec
    cache_dir: str
    """Where verdicts about this machine are kept."""
    tests: tuple[TestKind, ...] = TEST_KINDS
    repeats: int = 5
    """Rounds of one measurement of the engine and one of each side beside it."""
    sessions: tuple[int, ...] = (1, 2, 4, 8, 16)
    prompt_tokens: int = 512
    """Of "pp"."""
    gen_tokens: int = 128
    """Of "tg" and "depth"."""
    depth_tokens: int = 4096
    """What "depth" has in its context before it begins."""
    session_prompt_tokens: int = 128
    """What each session of "sessions" and "shared" begins with."""
    session_gen_tokens: int = 32
    """New tokens of each of them in one measurement."""
    tune: bool = False
    """Search for settings in place of the tests."""
    ablate: bool = False
    """Switch off what makes the engine fast, one after the other, in place of the tests."""
    speculate: tuple[Speculate, ...] = ()
    """Measure these drafts next to none, in place of the tests."""
    reference: ReferenceName | None = None
    """What the native runner is measured beside, on the same weights."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done now."""

    text: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The model is loaded; how both sides run it."""

    info: ModelInfo
    batch: int
    """n_batch."""
    ubatch: int
    """n_ubatch."""
    pool_tokens: int
    """n_ctx of both contexts, one unified pool each."""
    flash_attention: str
    """on, off or auto (the library decides); of the native runner: by PyTorch."""
    weight_bytes: int
    """Of all tensors; 0: not known."""
    mixture: bool
    """A mixture of experts: a token does not read all weights."""
    read_bytes_per_s: float
    """Memory read bandwidth: the best of a few sums over 256 MiB by numpy, on as many threads as
    decode uses.
    """
    beside: tuple[str, ...] = ()
    """The sides that the engine is measured beside: "raw", the loop over llama.cpp's library, or
    "generate" and "batching" of transformers.
    """


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    deviation: float
    """Sample standard deviation; 0 of a single measurement."""
    low: float
    high: float

    @classmethod
    def of(cls, samples: tuple[float, ...]) -> Spread:
        """The spread of one or more `samples`."""
        deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
        return cls(statistics.median(samples), deviation, min(samples), max(samples))


@dataclass(frozen=True, slots=True)
class Measured:
    """One test: tokens per second of each round, all sessions together."""

    test: str
    """In llama-bench's terms, e.g. "pp512", "tg128 @ d4096", "tg32 × 8"."""
    kind: TestKind
    sessions: int
    depth: int
    """Tokens in the context of each session when the first measurement began."""
    tokens: int
    """That one measurement computed, all sessions together."""
    engine: tuple[float, ...]
    beside: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Of each side in `Setup.beside`."""
    cached_tokens: int = 0
    """Prompt tokens that the engine did not compute, because another session held them."""

    def ratio(self, name: str) -> Spread:
        """Engine to the side `name`, round by round."""
        rounds = zip(self.engine, self.beside[name], strict=True)
        return Spread.of(tuple(engine / other for engine, other in rounds))

    def bandwidth_share(self, setup: Setup) -> float | None:
        """Of the time that reading all weights takes at the measured memory bandwidth, what a step
        of the engine takes: 1 is the limit of decoding. None where it is no such limit.
        """
        if self.kind == "pp" or setup.mixture or not setup.read_bytes_per_s * setup.weight_bytes:
            return None
        steps_per_s = Spread.of(self.engine).median / self.sessions
        return steps_per_s * setup.weight_bytes / setup.read_bytes_per_s


@dataclass(frozen=True, slots=True)
class Skipped:
    """A test that was not made, and why."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings that were measured, and what they give."""

    threads: int
    batch_threads: int
    max_batch_tokens: int
    kv_type: KvType
    sessions: int
    prefill_tok_per_s: float
    decode_tok_per_s: float
    """All sessions together."""
    request_s: float
    """Seconds of one request of `Job.prompt_tokens` and `Job.gen_tokens` among `sessions`."""
    generated_tok_per_s: float
    """New tokens of `sessions` such requests by the seconds that they take, prefill included."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings found: for one answer soon, and for many answers in all."""

    latency: Choice
    throughput: Choice
    tried: int
    """Measurements that it was chosen from."""
    library: str
    """The version that it holds for (`ModelInfo.backend_version`)."""


@dataclass(frozen=True, slots=True)
class Ablated:
    """Greedy requests without one of the means by which the engine is fast: one alone, then as many
    as there are sessions, of whose prompts seven eighths are those of the first.
    """

    off: Means
    computed_by: str
    """Whose layers, and the types of weights that they multiply."""
    ttft_s: tuple[float, ...]
    """Of the request alone, round by round as all of these."""
    shared_ttft_s: tuple[float, ...]
    """Of the others, the median."""
    tpot_s: tuple[float, ...]
    """From token to token, of the request alone."""
    tok_per_s: tuple[float, ...]
    """Generated ones of the others together, prompts included in the time."""
    computed_tokens: int
    """That went through the model in a round."""
    tokens: int
    """That were generated."""
    same_tokens: int
    """Of them those before the first that differs from the same answer with all on."""


@dataclass(frozen=True, slots=True)
class Speculated:
    """Greedy sessions with drafts, next to the same without."""

    mode: Speculate
    sessions: int
    drafted_tokens: tuple[int, ...]
    accepted_tokens: tuple[int, ...]
    """Both by position in a draft, of all rounds."""
    tokens_a_step: float
    """Of a session."""
    drafts_a_step: float
    """Of a session, steps without drafts included."""
    cost_ratio: float
    """A step with the most drafts by one without, wall time, of the runner alone."""
    draft_ratio: float
    """A token of the draft model for all sessions by a step without drafts; 0: n-grams."""
    predicted: float
    """Speed-up: tokens a step by what a step costs with as many drafts as there were."""
    predicted_cpu: float
    """The same where costs are CPU time."""
    speed_up: tuple[float, ...]
    """Tokens per second by those without drafts, round by round."""
    speed_up_cpu: tuple[float, ...]
    """The same by CPU time."""
    plain_tok_per_s: float
    """Without drafts, all sessions together."""
    same_tokens: int
    """Those before the first that differs from the same answer without drafts."""
    tokens: int
    """That could be compared."""


Message = Progress | Setup | Measured | Skipped | Tuned | Ablated | Speculated
