"""Benchmark jobs and their results: a front end sends one `Job` to the measuring process, which
answers with `Message`s.
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
"""Optimizations that can be switched off."""
TEST_KINDS: tuple[TestKind, ...] = ("pp", "tg", "depth", "sessions", "shared")
ReferenceName = Literal["transformers"]
REFERENCES: tuple[ReferenceName, ...] = ("transformers",)
"""Libraries that the native runner can be compared with."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. The model is loaded with the settings of `spec`, except that context,
    sessions and pool are as large as the tests need.
    """

    spec: ModelSpec
    cache_dir: str
    """Where self-test results for this machine are kept."""
    tests: tuple[TestKind, ...] = TEST_KINDS
    repeats: int = 5
    """Number of rounds; a round has one measurement of the engine and of each other side."""
    sessions: tuple[int, ...] = (1, 2, 4, 8, 16)
    prompt_tokens: int = 512
    """Prompt tokens of "pp"."""
    gen_tokens: int = 128
    """New tokens of "tg" and "depth"."""
    depth_tokens: int = 4096
    """Tokens in the context of "depth" before it begins."""
    session_prompt_tokens: int = 128
    """Prompt tokens of each session of "sessions" and "shared"."""
    session_gen_tokens: int = 32
    """New tokens of each of these sessions in one measurement."""
    tune: bool = False
    """Search for settings instead of running the tests."""
    ablate: bool = False
    """Switch off the optimizations of the engine one by one instead of running the tests."""
    speculate: tuple[Speculate, ...] = ()
    """Compare these drafts with decoding without drafts instead of running the tests."""
    reference: ReferenceName | None = None
    """Library to compare the native runner with, on the same weights."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the process is doing now."""

    text: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Sent when the model is loaded: how all sides run it."""

    info: ModelInfo
    batch: int
    """n_batch."""
    ubatch: int
    """n_ubatch."""
    pool_tokens: int
    """n_ctx of both contexts, one unified pool each."""
    flash_attention: str
    """on, off or auto (the library decides); for the native runner: by PyTorch."""
    weight_bytes: int
    """Size of all tensors; 0: unknown."""
    mixture: bool
    """The model is a mixture of experts, so a token does not read all weights."""
    read_bytes_per_s: float
    """Memory read bandwidth: the best of a few sums over 256 MiB by numpy, on as many threads as
    decode uses.
    """
    beside: tuple[str, ...] = ()
    """The sides that the engine is compared with: "raw", the loop over llama.cpp's library, or
    "generate" and "batching" of transformers.
    """


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of repeated measurements."""

    median: float
    deviation: float
    """Sample standard deviation; 0 for a single measurement."""
    low: float
    high: float

    @classmethod
    def of(cls, samples: tuple[float, ...]) -> Spread:
        """The spread of one or more `samples`."""
        deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
        return cls(statistics.median(samples), deviation, min(samples), max(samples))


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one test: tokens per second in each round, all sessions together."""

    test: str
    """In llama-bench's terms, e.g. "pp512", "tg128 @ d4096", "tg32 × 8"."""
    kind: TestKind
    sessions: int
    depth: int
    """Tokens in the context of each session when the first measurement began."""
    tokens: int
    """Tokens computed in one measurement, all sessions together."""
    engine: tuple[float, ...]
    beside: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Tokens per second of each side in `Setup.beside`."""
    cached_tokens: int = 0
    """Prompt tokens that the engine did not compute because another session held them."""

    def ratio(self, name: str) -> Spread:
        """Speed of the engine divided by that of the side `name`, round by round."""
        rounds = zip(self.engine, self.beside[name], strict=True)
        return Spread.of(tuple(engine / other for engine, other in rounds))

    def bandwidth_share(self, setup: Setup) -> float | None:
        """Time to read all weights at the measured memory bandwidth, divided by the time of a step
        of the engine: 1 is the limit of decoding. None if this limit does not apply or is unknown.
        """
        if self.kind == "pp" or setup.mixture or not setup.read_bytes_per_s * setup.weight_bytes:
            return None
        steps_per_s = Spread.of(self.engine).median / self.sessions
        return steps_per_s * setup.weight_bytes / setup.read_bytes_per_s


@dataclass(frozen=True, slots=True)
class Skipped:
    """A test that was not run, and the reason."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings that were measured, and the resulting speed."""

    threads: int
    batch_threads: int
    max_batch_tokens: int
    kv_type: KvType
    sessions: int
    prefill_tok_per_s: float
    decode_tok_per_s: float
    """Of all sessions together, like `prefill_tok_per_s`."""
    request_s: float
    """Seconds of a request of `Job.prompt_tokens` and `Job.gen_tokens`, one of `sessions` at the
    same time.
    """
    generated_tok_per_s: float
    """New tokens per second of `sessions` such requests, with the time of prefill included."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings found, for latency and for throughput."""

    latency: Choice
    throughput: Choice
    tried: int
    """Number of measurements that they were chosen from."""
    library: str
    """Version of the library that the choice applies to (`ModelInfo.backend_version`)."""


@dataclass(frozen=True, slots=True)
class Ablated:
    """Greedy requests with one optimization of the engine off: first one request alone, then those
    of all sessions at the same time, which share seven eighths of its prompt.
    """

    off: Means
    computed_by: str
    """The implementation of the layers, and the types of the weights that they multiply."""
    ttft_s: tuple[float, ...]
    """Time to first token of the single request, in each round."""
    shared_ttft_s: tuple[float, ...]
    """Median time to first token of the other requests, in each round."""
    tpot_s: tuple[float, ...]
    """Time per output token of the single request, in each round."""
    tok_per_s: tuple[float, ...]
    """Generated tokens per second of the other requests together, with the time of their prompts
    included, in each round.
    """
    computed_tokens: int
    """Tokens that went through the model in a round."""
    tokens: int
    """Tokens that were generated in a round."""
    same_tokens: int
    """Generated tokens before the first one that differs from the answer with all optimizations on.
    """


@dataclass(frozen=True, slots=True)
class Speculated:
    """Greedy sessions with drafts, compared with the same sessions without drafts."""

    mode: Speculate
    sessions: int
    drafted_tokens: tuple[int, ...]
    accepted_tokens: tuple[int, ...]
    """Like `drafted_tokens`, counts over all rounds by position in a draft."""
    tokens_a_step: float
    """Tokens per step and session."""
    drafts_a_step: float
    """Drafted tokens per step and session, including steps without drafts."""
    cost_ratio: float
    """Wall time of a step with the longest drafts divided by that of a step without drafts, in the
    runner alone.
    """
    draft_ratio: float
    """Wall time to draft one token for all sessions with a drafter, divided by that of a step
    without drafts; 0: n-grams.
    """
    predicted: float
    """Predicted speed-up: tokens per step divided by the relative cost of a step with the measured
    number of drafts.
    """
    predicted_cpu: float
    """The predicted speed-up with costs in CPU time."""
    speed_up: tuple[float, ...]
    """Tokens per second divided by those without drafts, in each round."""
    speed_up_cpu: tuple[float, ...]
    """The same ratio for tokens per second of CPU time."""
    plain_tok_per_s: float
    """Median tokens per second without drafts, all sessions together."""
    same_tokens: int
    """Tokens before the first one that differs from the answer without drafts."""
    tokens: int
    """Tokens that could be compared."""


Message = Progress | Setup | Measured | Skipped | Tuned | Ablated | Speculated
