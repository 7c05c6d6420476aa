"""The child process's side of `hearth.backends.machine.helper`: answers questions from standard
input, each of them a line of JSON.

It may be killed at any time: its parent kills it when an answer takes too long. It holds no
secrets, cannot open files (if the system has resource limits), and dies with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from hearth.backends.machine.process import die_with_parent, take_private_pipes

LARGEST_LINE_BYTES: Final = 64 * 1024 * 1024
MOST_MEMORY_BYTES: Final = 512 * 1024 * 1024
_CPU_S_PER_QUESTION: Final = 5
"""Limit of processor time that ends a runaway question if the parent was killed before it could."""


def line_of(value: Any) -> bytes:
    """`value` encoded as a line. Raises `ValueError` if that takes more than 64 MiB."""
    data = json.dumps(value).encode() + b"\n"
    if len(data) > LARGEST_LINE_BYTES:
        raise ValueError(f"a line of {len(data):,} bytes")
    return data


def read_line(stream: BinaryIO) -> Any:
    """The next value. Raises `EOFError` at the end of the stream, `ValueError` if the line is not
    JSON or takes more than 64 MiB.
    """
    line = stream.readline(LARGEST_LINE_BYTES)
    if not line:
        raise EOFError("the stream ended")
    return json.loads(line)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], warm_up: Callable[[], None]) -> None:
    """Answer questions until standard input closes. The first command-line argument is the parent's
    process id.

    Args:
        answer: returns the answer to a question, both of JSON values.
        warm_up: imports everything that `answer` may need, while files can still be opened.
    """
    die_with_parent(int(sys.argv[1]))
    input_fd, output_fd = take_private_pipes()
    questions, answers = os.fdopen(input_fd, "rb"), os.fdopen(output_fd, "wb")
    warm_up()
    _limit_resources()
    said: dict[str, Any] = {"ready": True}
    with contextlib.suppress(EOFError):
        while True:
            answers.write(line_of(said))
            answers.flush()
            question = read_line(questions)
            _renew_cpu_limit()
            said = answer(question)


def _limit_resources() -> None:
    """Limit memory, files and processes, as far as the system supports such limits."""
    if sys.platform == "win32":
        return
    import resource

    limits = {
        "RLIMIT_AS": MOST_MEMORY_BYTES,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 0,
    }
    for name, most in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # Unknown or not allowed.
            resource.setrlimit(getattr(resource, name), (most, most))


def _renew_cpu_limit() -> None:
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    soon = int(used.ru_utime + used.ru_stime) + 1 + _CPU_S_PER_QUESTION
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    with contextlib.suppress(ValueError, OSError):  # An inherited hard limit may be lower.
        resource.setrlimit(resource.RLIMIT_CPU, (soon, hard))
