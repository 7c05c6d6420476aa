"""The child process that measures memory bandwidth: `bandwidth.measure_bandwidth` starts it."""

from __future__ import annotations

import os
import time
from typing import Any

from hearth.app.jobs.child import Reporter


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Bytes read a second by `question["threads"]` threads, over `question["size_bytes"]` if that
    is given; and how many processors others used meanwhile.
    """
    import psutil

    from hearth.backends.bench.bandwidth import read_bytes_per_s

    reporter.check()
    sizes = {} if question["size_bytes"] is None else {"size_bytes": question["size_bytes"]}
    began, before, own_before = time.monotonic(), psutil.cpu_times(), os.times()
    rate = read_bytes_per_s(question["threads"], **sizes)
    took_s, after, own = time.monotonic() - began, psutil.cpu_times(), os.times()
    all_s = (after.user + after.system) - (before.user + before.system)
    own_s = (own.user + own.system) - (own_before.user + own_before.system)
    return {"bytes_per_s": rate, "cores_elsewhere": max(0.0, all_s - own_s) / max(took_s, 1e-3)}


if __name__ == "__main__":
    from hearth.app.jobs.child import serve

    serve(measure)
