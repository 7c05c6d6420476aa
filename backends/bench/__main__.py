"""The process that measures: a job in on stdin, messages out on stdout, everything else printed
goes to stderr.

    python -P -m hearth.backends.bench --job JOB.json

Without `--job`, the job is the first line of stdin. With `--parent`, the process ends when that one
does, or when stdin does; so it leaves Ctrl+C to its parent.
"""

from __future__ import annotations

import sys

from hearth.backends.machine.process import die_with_parent, take_private_pipes

if __name__ == "__main__":
    # Before anything else is imported: whatever prints must not get between two messages, whoever
    # dies must take this process along.
    if "--parent" in sys.argv:
        die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
    _PIPES = take_private_pipes()

import argparse
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hearth.backends.bench.job import (
    Done,
    Job,
    MalformedLine,
    Message,
    Problem,
    decode_job,
    encode_message,
)
from hearth.backends.errors import InternalError, InvalidParameter, to_info

log = logging.getLogger(__name__)


def run(job: Job) -> Iterator[Message]:
    """Do `job`; yields what comes of it, a `Problem` or `Done` last."""
    from hearth.backends.bench.session import run_tests
    from hearth.backends.bench.tune import tune

    try:
        yield from tune(job) if job.tune else run_tests(job)
    except Exception as error:
        info = to_info(error)
        if info.code == InternalError.code:
            log.exception("measuring %s", job.spec.path)
        yield Problem(info)
    else:
        yield Done()


def main(input_fd: int, output_fd: int) -> None:
    """Entry of `python -m hearth.backends.bench`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path)
    parser.add_argument("--parent", type=int)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Unbuffered: the watching thread must not hold a buffer's lock when the interpreter ends.
    source = os.fdopen(input_fd, "rb", buffering=0)
    out = os.fdopen(output_fd, "wb")
    line = args.job.read_bytes() if args.job else source.readline()
    if args.parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_leave_at_the_end, args=(source,), daemon=True).start()
    try:
        job = decode_job(line)
    except MalformedLine as error:
        problem = InvalidParameter("job", f"The job cannot be read: {error}")
        out.write(encode_message(Problem(to_info(problem))))
        out.flush()
        return
    try:
        for message in run(job):
            out.write(encode_message(message))
            out.flush()
    except BrokenPipeError:
        os._exit(0)  # Nobody listens any more; an orderly end would flush into the same pipe.


def _leave_at_the_end(source: BinaryIO) -> None:
    """End this process when `source` does: whoever started it is gone, or has lost interest."""
    while source.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(*_PIPES)
