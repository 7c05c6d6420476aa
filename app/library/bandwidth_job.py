"""The child process that measures memory bandwidth: `bandwidth.measure_bandwidth` starts it."""

from __future__ import annotations

from typing import Any

from hearth.app.jobs.child import Reporter


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Bytes read a second by `question["threads"]` threads, over `question["size_bytes"]` if that
    is given.
    """
    from hearth.backends.bench.bandwidth import read_bytes_per_s

    reporter.check()
    sizes = {} if question["size_bytes"] is None else {"size_bytes": question["size_bytes"]}
    return {"bytes_per_s": read_bytes_per_s(question["threads"], **sizes)}


if __name__ == "__main__":
    from hearth.app.jobs.child import serve

    serve(measure)
