"""The cost of a decode step's attention on this processor, with llama.cpp's flash attention and
with two matrix products: one layer after 2,048 tokens, float16 keys and values.

    python benchmarks/attention.py [--threads N]

The runner uses the two products where they need at most four fifths of the time of flash attention
(`hearth.backends.llamacpp.attention`).
"""

from __future__ import annotations

import argparse

from hearth.backends.llamacpp.attention import measured
from hearth.backends.llamacpp.probe_model import Heads
from hearth.backends.machine.threads import usable_cores

SHAPES = {
    "Qwen3-0.6B": Heads(16, 8, 128, 128),
    "Llama-3.2-1B": Heads(32, 8, 64, 64),
    "Llama-3.1-8B": Heads(32, 8, 128, 128),
    "Gemma-3-1B": Heads(4, 1, 256, 256),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    threads = parser.parse_args().threads
    print(f"{threads} threads; ms for one layer\n")
    print("| heads of | flash | plain | plain / flash | taken |")
    print("|---|---:|---:|---:|---|")
    for name, heads in SHAPES.items():
        found = measured(heads, "f16", threads, None)
        taken = "flash" if found.flash_pays else "plain"
        print(
            f"| {name} | {1000 * found.flash_s:.2f} | {1000 * found.plain_s:.2f} "
            f"| {found.plain_s / found.flash_s:.2f} | {taken} |"
        )


if __name__ == "__main__":
    main()
