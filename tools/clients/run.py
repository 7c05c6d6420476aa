"""Installs real clients from their registries and runs them against `hearth serve`.

    python tools/clients/run.py [NAME ...] [--record DIR] [--results FILE]

Each client gets its own environment in build/clients/NAME (HEARTH_CLIENTS_DIR sets another folder),
and only the settings with which its documentation selects a server; telemetry is off.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from catalog import CLIENTS, Client  # noqa: E402 - needs the path above
from environments import Environment  # noqa: E402
from models import CALLER, LONG, LONG_CONTEXT, TRAINED, tool_call, write_models  # noqa: E402
from recording import recorded  # noqa: E402
from serving import served  # noqa: E402

SCRIPTS = Path(__file__).resolve().parent / "scripts"
FOLDER = Path(os.environ.get("HEARTH_CLIENTS_DIR", ROOT / "build" / "clients")).resolve()
TIMEOUT_S = 1200


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client's script reported; without version and steps, it could not be installed."""

    client: Client
    version: str
    passed: Sequence[str]
    failed: Sequence[str]
    code: int | None
    """Exit code; None if the script did not end in time."""
    seconds: float

    @property
    def ok(self) -> bool:
        return self.code == 0 and bool(self.passed) and not self.failed

    @property
    def result(self) -> str:
        if self.ok:
            return "passed"
        if not self.version:
            return "cannot be installed"
        ending = "did not end in time" if self.code is None else f"exit code {self.code}"
        return f"failed: {', '.join(self.failed) or ending}"


def run(client: Client, environment: Environment, url: str, log: Path) -> Outcome:
    """Run the client's script against `url`; its output is written to `log`."""
    settings = {
        "HEARTH_URL": url,
        "HEARTH_CLIENT_MODEL": TRAINED,
        "HEARTH_CLIENT_LONG": LONG,
        "HEARTH_CLIENT_CALLER": CALLER,
        "HEARTH_CLIENT_SCRIPTED": client.scripted_model,
        "HEARTH_CLIENT_BIN": str(environment.bin),
        "HEARTH_CLIENT_PROJECT": str(project_of(client)),
    }
    script = SCRIPTS / client.script
    if script.suffix == ".mjs":  # node looks for packages next to the script
        script = Path(shutil.copy(script, environment.folder))
        program = "node"
    else:
        program = sys.executable if client.is_agent else str(environment.bin / "python")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = time.monotonic()
    code: int | None = None
    with log.open("w+") as out:
        try:
            command = [program, str(script)]
            code = subprocess.run(
                command, env=environ | settings, stdout=out, stderr=out, timeout=TIMEOUT_S
            ).returncode
        except subprocess.TimeoutExpired:
            pass
        out.seek(0)
        lines = out.read().splitlines()
    steps = {
        word: [
            line.removeprefix(f"step {word} ") for line in lines if line.startswith(f"step {word} ")
        ]
        for word in ("ok", "failed")
    }
    seconds = time.monotonic() - started
    return Outcome(client, environment.version(), steps["ok"], steps["failed"], code, seconds)


def project_of(client: Client) -> Path:
    """The folder that an agent works in."""
    return FOLDER / "projects" / client.name


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = ["| client | version | from | what ran | result |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        ran = "; ".join([*outcome.passed, *outcome.failed])
        rows.append(
            f"| {outcome.client.name} | {outcome.version} | {outcome.client.registry}"
            f" | {ran} | {outcome.result} |"
        )
    return "\n".join(rows)


def document(outcomes: Sequence[Outcome]) -> str:
    """The page for docs/results."""
    today = datetime.date.today().isoformat()
    passed = sum(outcome.ok for outcome in outcomes)
    return f"""\
# Clients, {today}

`make clients`: each client as its registry has it, in an environment of its own, against
`hearth serve`, with only the settings by which its documentation names a server, and telemetry off.
{passed} of {len(outcomes)} passed.

Machine: {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}.

The agents (Claude Code, Codex, opencode, aider) answer once from a model of random weights with a
context of {LONG_CONTEXT:,} tokens, where the exit code counts, and once from a scripted one, whose
tool call or edit they must carry out: it confirms only a result that contains what the tool had to
find. The other clients use SmolLM2-135M-Instruct (Q4_1), and a scripted model for tool loops.
"(refused)" is a method that the server does not have and says so.

{table(outcomes)}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [client.name for client in CLIENTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--record", type=Path, help="folder for the requests, as JSON")
    parser.add_argument("--results", type=Path, help="file for the table, as Markdown")
    parser.add_argument("--upgrade", action="store_true", help="install the newest versions")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    clients = [client for client in CLIENTS if not args.names or client.name in args.names]
    logs = FOLDER / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    agents = [client for client in clients if client.is_agent]
    scripts = {agent.scripted_model: agent.scripted(project_of(agent)) for agent in agents}
    scripts[CALLER] = (
        tool_call("get_weather", {"city": "Lisbon"}),
        "sunny, 31 degrees",
        "It is sunny there.",
    )
    models = write_models(FOLDER / "models", scripts, FOLDER / "models")
    outcomes = []
    with served(models, TRAINED, frozenset({LONG, *scripts}), logs / "server.log") as url:
        for client in clients:
            environment = Environment(client, FOLDER / client.name)
            log = logs / f"{client.name}.log"
            try:
                environment.install(upgrade=args.upgrade)
            except subprocess.CalledProcessError as error:
                log.write_text(f"{error.stdout}{error.stderr}")
                outcome = Outcome(client, "", (), (), None, 0.0)
            else:
                with ExitStack() as stack:
                    seen = url
                    if args.record is not None:
                        seen = stack.enter_context(recorded(url, args.record / client.name))
                    outcome = run(client, environment, seen, log)
            outcomes.append(outcome)
            line = f"{client.name} {outcome.version}: {outcome.result} ({outcome.seconds:.0f} s)"
            sys.stderr.write(f"{line}\n" if outcome.ok else f"{line}; see {log}\n")
    print(table(outcomes))
    if args.results is not None:
        args.results.write_text(document(outcomes))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
