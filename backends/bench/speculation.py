"""Measures what drafts gain: the same greedy sessions without and with drafts, alternately, and the
cost of a step with drafts and of a drafted token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hearth.backends.bench.cases import Case, check_job
from hearth.backends.bench.engine_side import EngineSide, Raced, summed
from hearth.backends.bench.job import Job, Message, Progress, Skipped, Speculated
from hearth.backends.bench.measure import alternate, same_tokens
from hearth.backends.bench.model_facts import read_facts
from hearth.backends.bench.session import impossible, setup_of, sized
from hearth.backends.contract.messages import Message as ChatMessage
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine import sequence
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.engine.speculation import Drafter
from hearth.backends.errors import InvalidParameter, UnsupportedModel
from hearth.backends.text.renderer import Renderer
from hearth.backends.worker.drafting import open_draft, open_heads
from hearth.backends.worker.prompts import Prompts
from hearth.backends.worker.runners import open_model

PROMPT_TOKENS: Final = 384
"""Upper limit of the tokens of each text below, in any vocabulary."""
COST_STEPS: Final = 24
"""Number of steps of each width that are measured, alternately."""
CODE: Final = """\
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def diagonal(width, height):
    return (width ** 2 + height ** 2) ** 0.5

def {name}(width, height):
    print("area", area(width, height))
    print("perimeter", perimeter(width, height))
    print("diagonal", diagonal(width, height))
"""
"""A program in which `name` is to be changed."""
_NAMES: Final = ("describe", "report", "summary", "show", "tell", "output", "display", "dump")
_QUESTIONS: Final = (
    "How do I download a model?",
    "What is a context window?",
    "How much memory does a model need?",
    "What does quantization do?",
    "How do I start the server?",
    "Why is the first answer slow?",
    "What is temperature?",
    "Where are chats stored?",
)


class Timed:
    """Wraps a drafter and measures the time that it takes.

    Attributes:
        calls_s: wall and CPU seconds of all calls.
        depth: sequentially drafted tokens, summed over all calls.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.calls_s = (0.0, 0.0)
        self.depth = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def draft(self, lengths: Mapping[sequence.Sequence, int]) -> dict[sequence.Sequence, Draft]:
        began = _now()
        made = self._drafter.draft(lengths)
        rows = (Row(0, 0, (), 0, len(one.tokens), one.parents) for one in made.values())
        if depth := max((row.depth for row in rows), default=0):
            self.calls_s = _added(self.calls_s, _since(began))
            self.depth += depth
        return made


@dataclass(frozen=True, slots=True)
class Costs:
    """Median wall and CPU seconds of steps of several sessions."""

    plain_s: tuple[float, float]
    """Steps with one token for each session."""
    wider_s: tuple[float, float]
    """Steps with one token and a draft of the greatest length for each session."""


def speculate(job: Job) -> Iterator[Message]:
    """Measure `job.speculate` for each number of `job.sessions`.

    Raises:
        InvalidParameter: a number of the job, or the draft model, cannot be used.
        UnsupportedModel: the model's memory cannot roll back.
        HearthError: what `open_model` raises.
    """
    check_job(job)
    facts = read_facts(job)
    most, count = job.spec.settings.draft_tokens, job.gen_tokens
    gen_tokens = count + 2 * (most + 1)
    case = Case(
        "--speculate", "sessions", max(job.sessions), PROMPT_TOKENS, 0, gen_tokens, fresh=True
    )
    if reason := impossible(case, job, facts):
        raise InvalidParameter("gen_tokens", f"{case.name} {reason}.", "Measure less: --gen.")
    spec = sized(job, facts, [case])
    yield Progress(f"loading {job.spec.name or Path(job.spec.path).stem}")
    with ExitStack() as opened:
        loaded = open_model(spec, Path(job.cache_dir))
        opened.callback(loaded.runner.close)
        if not loaded.runner.info.can_roll_back:
            raise UnsupportedModel(
                f"The memory of {loaded.info.name} cannot forget tokens, so nothing is drafted.",
                "Measure another model.",
            )
        draft = open_draft(spec, loaded, Path(job.cache_dir))
        if draft is not None:
            opened.callback(draft.runner.close)
        drafters = open_heads(spec, loaded) if draft is None else [draft]
        timed = [Timed(one) for one in drafters]
        yield setup_of(loaded, facts, ())
        edits = job.speculate[0] == "ngram" or not timed
        prompts = texts(loaded, edits=edits)
        for sessions in job.sessions:
            name = f"{sessions} sessions"
            need, room = sessions * case.tokens(1), loaded.runner.info.pool_tokens
            if need > room:
                yield Skipped(name, f"needs a pool of {need:,} tokens, and {room:,} fit")
                continue
            yield Progress(name)
            chosen = [prompts[index % len(prompts)] for index in range(sessions)]
            yield from measure(loaded, timed, chosen, job.speculate, most, count, job.repeats)


def measure(
    loaded: Loaded,
    timed: Sequence[Timed],
    prompts: list[list[int]],
    modes: Sequence[Speculate],
    most: int,
    count: int,
    repeats: int,
) -> Iterator[Speculated]:
    """Compare each of `modes` with decoding without drafts, for sessions with `prompts`, after one
    round that does not count.

    Args:
        most: most tokens of a draft.
        count: new tokens after which the first session ends the race.
    """
    costs = measure_costs(loaded, prompts, most)
    side = EngineSide(loaded, timed)
    every: tuple[Speculate, ...] = ("off", *modes)
    sides = [partial(side.race, prompts, count, mode, most) for mode in every]
    for race in sides:
        race()
    for one in timed:
        one.calls_s, one.depth = (0.0, 0.0), 0
    plain, *others = alternate(sides, repeats)
    for mode, raced in zip(modes, others, strict=True):
        used = [one for one in timed if mode in (one.mode, "auto")]
        draft_s = (0.0, 0.0)
        if depth := sum(one.depth for one in used):
            draft_s = (
                sum(one.calls_s[0] for one in used) / depth,
                sum(one.calls_s[1] for one in used) / depth,
            )
        yield compared(mode, plain, raced, costs, draft_s, most, len(prompts))


def compared(
    mode: Speculate,
    plain: Sequence[Raced],
    raced: Sequence[Raced],
    costs: Costs,
    draft_s: tuple[float, float],
    most: int,
    sessions: int,
) -> Speculated:
    """The speed-up of `raced` over `plain`, round by round, and the predicted one.

    Args:
        draft_s: wall and CPU seconds to draft one token for all sessions; 0 for n-grams.
    """
    drafted = summed([one.drafted for one in raced])
    accepted = summed([one.accepted for one in raced])
    new_tokens, rows = sum(one.new_tokens for one in raced), sum(one.rows for one in raced)
    a_step = new_tokens / rows
    width = sum(drafted) / rows
    by_model = draft_s[0] > 0
    # A step has either a whole draft or none, and the longest draft determines the drafting time.
    depth = sum(one.depth for one in raced) / sum(one.steps for one in raced) if by_model else 0.0
    predicted = []
    for clock in (0, 1):
        cost = costs.wider_s[clock] / costs.plain_s[clock]
        drafting = depth * draft_s[clock] / costs.plain_s[clock]
        predicted.append(a_step / (1 + (cost - 1) * width / most + drafting))
    pairs = list(zip(plain, raced, strict=True))
    answers = [pair for off, one in pairs for pair in zip(off.tokens, one.tokens, strict=True)]
    return Speculated(
        mode,
        sessions,
        drafted,
        accepted,
        a_step,
        width,
        costs.wider_s[0] / costs.plain_s[0],
        draft_s[0] / costs.plain_s[0],
        predicted[0],
        predicted[1],
        tuple(one.rate(0) / off.rate(0) for off, one in pairs),
        tuple(one.rate(1) / off.rate(1) for off, one in pairs),
        statistics.median(one.rate(0) for one in plain),
        sum(same_tokens(*pair) for pair in answers),
        sum(min(map(len, pair)) for pair in answers),
    )


def measure_costs(loaded: Loaded, prompts: list[list[int]], most: int) -> Costs:
    """Costs of steps with one token for each session, and with `most` drafted tokens in addition,
    measured alternately after `prompts`.
    """
    cached = CachedRunner(loaded.runner)
    kv, widths = cached.kv, (1, 1 + most)
    chunk = loaded.runner.info.max_batch_tokens
    for slot, prompt in enumerate(prompts):
        kv.open(slot, prompt[:1])
        kv.reserve(slot, len(prompt) + 1 + most)
        for start in range(0, len(prompt), chunk):
            cached.advance(StepPlan((Row(slot, start, prompt[start : start + chunk], 0),)))
    samples: dict[int, list[tuple[float, float]]] = {width: [] for width in widths}
    for _ in range(COST_STEPS):
        for width in widths:
            rows = tuple(
                Row(slot, len(prompt), prompt[-width:], width, drafts=width - 1)
                for slot, prompt in enumerate(prompts)
            )
            began = _now()
            cached.step(StepPlan(rows))
            samples[width].append(_since(began))
            for row in rows:
                kv.undo(row.slot, width)
    for slot in range(len(prompts)):
        kv.release(slot, keep=False)
    kv.clear()
    plain, wider = (
        (statistics.median(one[0] for one in times), statistics.median(one[1] for one in times))
        for times in samples.values()
    )
    return Costs(plain, wider)


def texts(loaded: Loaded, *, edits: bool) -> list[list[int]]:
    """Prompts: code to be repeated with a name changed if `edits`, else questions, rendered by the
    model's chat template if it has one.
    """
    encode = partial(loaded.tokenizer.encode, special=False, add_bos=True)
    if edits:
        made = []
        for name in _NAMES:
            code = CODE.format(name=name)
            made.append(f"# Rename {name} to run, and repeat all.\n{code}\n# The same, renamed:\n")
        return [encode(text)[-PROMPT_TOKENS:] for text in made]
    if not loaded.templates:
        return [encode(f"Question: {text}\nAnswer:")[-PROMPT_TOKENS:] for text in _QUESTIONS]
    renderer = Renderer()
    try:
        prompts = Prompts(loaded.info.name, loaded.tokenizer, loaded.templates, renderer)
        asked = [Request(messages=(ChatMessage("user", text),)) for text in _QUESTIONS]
        return [prompts.prepare(one).ids[-PROMPT_TOKENS:] for one in asked]
    finally:
        renderer.close()


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - began[0], time.process_time() - began[1]


def _added(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]
