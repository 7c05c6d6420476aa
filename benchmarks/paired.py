"""The cost of a change where it is not used: figures of two checkouts, in alternating rounds.

    git worktree add ../before COMMIT
    python benchmarks/paired.py ../before MODEL.gguf [--after .] [--rounds 3]

Each round runs the same benchmarks with the packages of both checkouts and the Python of this one:
steps of both runners (decode, and prefill of the native one), by the scripts of the checkout
"after", and steps of the engine without a model, by each checkout's own script. Every number that
they print is paired with the number in the same place, and the median over the rounds of "after"
divided by "before" is printed, with the medians themselves. The endpoints of both run at the same
time, in alternating rounds of their own (`endpoint.py --before`). The kernels of a checkout are
built if they are missing. Three rounds take about eight minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NUMBER: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.])")
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "step_cpu.py": ("{model}", "--sessions", "1", "8", "--steps", "16"),
    "llamacpp_step.py": ("--model", "{model}", "--steps", "40"),
    "engine_step.py": ("--runs", "3"),
}
"""Arguments by script; every script prints a table."""
OWN: Final = {"engine_step.py"}
"""Scripts that use the test fakes of their own checkout."""
ENDPOINT: Final = "endpoint.py"
DISK_BUDGET: Final = "HEARTH_KV_DISK_BUDGET"


def environment(checkout: Path, folder: Path) -> dict[str, str]:
    """The environment of processes that import `hearth` from `checkout`, by links in `folder`."""
    package = folder / "hearth"
    package.mkdir(parents=True)
    for part in ("app", "backends", "quant", "kernels"):
        (package / part).symlink_to(checkout.resolve() / part)
    made = os.environ | {"PYTHONPATH": str(folder)}
    if "kv_disk_budget" in (checkout / "app" / "settings_keys.py").read_text(encoding="utf-8"):
        made[DISK_BUDGET] = "0"  # As in benchmarks/endpoint.py.
    return made


def figures(checkout: Path, name: str, options: list[str], env: Mapping[str, str]) -> list[str]:
    """The lines that a benchmark prints."""
    command = [sys.executable, str(checkout / "benchmarks" / name), *options]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()


def numbers(line: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(line)]


def compared(before: list[list[str]], after: list[list[str]]) -> list[str]:
    """One row for each line whose numbers occur in all rounds: its words, and for each number the
    medians and the median of the ratios.
    """
    rows = []
    for lines in zip(*before, *after, strict=False):
        values = [numbers(line) for line in lines]
        if not values[0] or len({len(found) for found in values}) > 1:
            continue
        cells = []
        for each in zip(*values, strict=True):
            old, new = each[: len(before)], each[len(before) :]
            if len({*old, *new}) == 1:
                continue  # A setting.
            ratios = [b / a for a, b in zip(old, new, strict=True) if a]
            ratio = f"{statistics.median(ratios):.3f}" if ratios else "-"
            cells.append(f"{statistics.median(old):g} → {statistics.median(new):g} ({ratio})")
        if cells:
            words = " ".join(NUMBER.sub(" ", lines[0]).replace("|", " ").split())
            rows.append(f"| {words} | {', '.join(cells)} |")
    return rows


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=(*COMMANDS, ENDPOINT), nargs="+")
    asked = parser.parse_args()
    checkouts = [asked.before.resolve(), asked.after.resolve()]
    with tempfile.TemporaryDirectory() as folder:
        envs = [environment(one, Path(folder) / str(at)) for at, one in enumerate(checkouts)]
        for checkout, env in zip(checkouts, envs, strict=True):
            if not list((checkout / "kernels" / "cpu" / "built").glob("libhearth_cpu*")):
                build = [sys.executable, "kernels/cpu/build_library.py"]
                subprocess.run(build, cwd=checkout, env=env, check=True)
        for name in COMMANDS:
            if asked.only and name not in asked.only:
                continue
            options = [word.format(model=asked.model.resolve()) for word in COMMANDS[name]]
            found: list[list[list[str]]] = [[], []]
            for number in range(asked.rounds):
                for at in (0, 1) if number % 2 == 0 else (1, 0):
                    own = checkouts[at if name in OWN else 1]
                    found[at].append(figures(own, name, options, envs[at]))
            print(f"\n{name} {' '.join(options)}\n\n| | before → after (ratio) |\n|---|---|")
            print("\n".join(compared(*found)), flush=True)
        if not asked.only or ENDPOINT in asked.only:
            script = checkouts[1] / "benchmarks" / ENDPOINT
            command = [sys.executable, str(script), "--before", str(checkouts[0])]
            print(f"\n{ENDPOINT} --before\n", flush=True)
            # It sets the variable for both sides itself: the other checkout may not know it.
            env = {name: value for name, value in envs[1].items() if name != DISK_BUDGET}
            subprocess.run(command, env=env, check=True)


if __name__ == "__main__":
    main()
