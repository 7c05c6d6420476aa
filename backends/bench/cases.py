"""The tests of a job: their names, their sizes, and their requirements on the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from hearth.backends.bench.job import Job, TestKind
from hearth.backends.errors import InvalidParameter

SLACK_TOKENS = 64
"""Room for tokens that the first sessions generate while the prompts of the others are computed.
This happens if the KV cache cannot keep those prompts: for memories that keep no past."""
_CELLS = 256
"""llama.cpp rounds the size of a pool up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        prompt_tokens: tokens of the prompt of each session.
        shared_tokens: length of the prefix of the prompt that all sessions have in common.
        gen_tokens: new tokens of each session in one measurement; 0: the prompt is measured.
        fresh: each measurement begins with an empty context. False: each continues where the last
            one ended, because a prompt of that length takes longer than the measurement.
    """

    name: str
    kind: TestKind
    sessions: int
    prompt_tokens: int
    shared_tokens: int
    gen_tokens: int
    fresh: bool

    def tokens(self, repeats: int) -> int:
        """Most tokens of one session; the warm-up counts as one more measurement."""
        stretches = 1 if self.fresh else repeats + 1
        return self.prompt_tokens + SLACK_TOKENS + stretches * self.gen_tokens

    def context(self, repeats: int) -> int:
        """Context to load the model with. It is doubled for several sessions: at most half of a
        pool holds sequences that have ended, and their prompts must stay there until all sessions
        begin.
        """
        return self.tokens(repeats) if self.sessions == 1 else 2 * self.tokens(repeats)

    def pool_tokens(self, repeats: int) -> int:
        """Tokens of a pool for all sessions together; the engine does not rely on sharing."""
        return self.sessions * self.context(repeats)


def cases(job: Job) -> Iterator[Case]:
    """The tests of `job`, in the order of `TEST_KINDS`."""
    if "pp" in job.tests:
        name = f"pp{job.prompt_tokens}"
        yield Case(name, "pp", 1, job.prompt_tokens, 0, 0, fresh=True)
    if "tg" in job.tests:
        yield Case(f"tg{job.gen_tokens}", "tg", 1, 1, 0, job.gen_tokens, fresh=True)
    if "depth" in job.tests:
        name = f"tg{job.gen_tokens} @ d{job.depth_tokens}"
        yield Case(name, "depth", 1, job.depth_tokens, 0, job.gen_tokens, fresh=False)
    prompt, count = job.session_prompt_tokens, job.session_gen_tokens
    if "sessions" in job.tests:
        for sessions in job.sessions:
            name = f"tg{count} × {sessions}"
            yield Case(name, "sessions", sessions, prompt, 0, count, fresh=False)
    if "shared" in job.tests:
        shared = prompt - max(1, prompt // 8)
        for sessions in job.sessions:
            if sessions > 1 and shared > 0:
                name = f"tg{count} × {sessions} shared"
                yield Case(name, "shared", sessions, prompt, shared, count, fresh=False)


def pool_tokens(found: list[Case], repeats: int) -> int:
    """Tokens of a pool that is large enough for each of `found`, rounded as llama.cpp does."""
    most = max((case.pool_tokens(repeats) for case in found), default=1)
    return -(-most // _CELLS) * _CELLS


def check_job(job: Job) -> None:
    """Raises `InvalidParameter`, with the name of the field, if `job` cannot be measured."""
    sizes = {
        **{one.name: getattr(job, one.name) for one in fields(job) if one.type == "int"},
        "sessions": min(job.sessions, default=0),
        "tests": len(job.tests),
    }
    for name, size in sizes.items():
        if size < 1:
            raise InvalidParameter(name, f"{name} must be 1 or more to measure anything.")
