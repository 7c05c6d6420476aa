"""Tests whether this build of llama.cpp computes quantized models correctly on this CPU.

GCC before 12.4 and 13.3 miscompiles llama.cpp's AMX kernels: such a build dies of SIGSEGV on every
quantized file. A child process tests this once for each library and CPU. If it dies or its results
are wrong, weights are not repacked ("extra buffers" off), which works but is slower.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import BackendUnavailable
from hearth.backends.llamacpp import probe_model
from hearth.backends.llamacpp.lib import INSTALL, load_library
from hearth.backends.machine.atomic_files import write_json
from hearth.backends.machine.cpu import cpu_fields, cpu_name
from hearth.backends.machine.process import die_with_parent, signal_name

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
NMSE_BOUND = 0.01
"""Largest error of quantized against float32 logits with equal weights. Rounding activations to 8
bits causes about 1e-4; a wrong kernel causes about 1."""
_CRASHES = ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE")
"""Signals that the code itself causes, unlike e.g. SIGKILL, sent by a system short of memory."""
_WINDOWS_CRASHES = (0xC0000005, 0xC000001D)
"""Access violation, illegal instruction."""
_UNAVAILABLE = 3
"""Exit code of the child if the library does not load."""
_PREFILL = 40
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the self-test for one library on one CPU."""

    extra_buffers_safe: bool
    reason: str
    """What went wrong with extra buffers on; "" if nothing."""
    system_info: str
    """llama.cpp's own list of the CPU features it uses."""
    fingerprint: str
    is_final: bool = True
    """False if the test could not be completed; it is repeated at the next load."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of the probe ended."""

    failure: str
    """What went wrong; "" if nothing."""
    system_info: str
    is_proof: bool = True
    """False if the failure may be temporary: no time, no memory, no disk."""


def verdict(cache_dir: Path | None) -> Verdict:
    """The verdict on the installed library, stored or from a test now (1 to 2 s).

    Args:
        cache_dir: where verdicts are stored; None to test now and store nothing.

    Raises:
        BackendUnavailable: quantized models fail even without extra buffers, or the library is not
            installed.
    """
    fingerprint = library_fingerprint()
    stored = cache_dir / f"llamacpp-selftest-{fingerprint}.json" if cache_dir else None
    known = _load(stored, fingerprint) if stored else None
    if known is not None:
        return known
    first, second = _try_both()
    is_final = first.is_proof and second.is_proof
    if second.failure and second.is_proof:
        raise BackendUnavailable(
            "This llama.cpp build cannot run quantized models on this CPU: "
            f"{first.failure}; without repacked weights: {second.failure}",
            f"Build it again:\n{cure(first.system_info)}",
            fingerprint=fingerprint,
        )
    result = Verdict(not first.failure, first.failure, first.system_info, fingerprint, is_final)
    if stored is not None and is_final:
        try:
            _store(stored, result)
        except OSError as error:
            log.warning("llama.cpp is tested again at the next load: %s", error)
    return result


def _try_both() -> tuple[Outcome, Outcome]:
    """The outcomes with extra buffers, and without them, which is only tried if the first failed.

    Raises `BackendUnavailable` if the library does not load.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="hearth-selftest-") as folder:
            first = _try(extra_buffers=True, folder=Path(folder))
            if not first.failure:
                return first, first
            return first, _try(extra_buffers=False, folder=Path(folder))
    except OSError as error:
        failed = Outcome(f"it could not be run: {error}", "", is_proof=False)
        return failed, failed


def explain(found: Verdict) -> str | None:
    """A notice for the user if the library runs in its slower mode, else None."""
    if found.extra_buffers_safe:
        return None
    if not found.is_final:
        return (
            f"The self-test of llama.cpp was not completed ({found.reason}); Hearth runs it without"
            " repacked weights, which is slower, and repeats the test at the next load."
        )
    crashed = any(name in found.reason for name in _CRASHES)
    if crashed and "AMX_INT8 = 1" in found.system_info:
        return (
            "This llama.cpp build crashes with AMX on this CPU (GCC before 12.4 / 13.3); Hearth "
            "runs it without repacked weights, which is slower. `hearth doctor` shows the cure."
        )
    return (
        f"This llama.cpp build fails with repacked weights on this CPU ({found.reason}); Hearth "
        "runs it without them, which is slower. `hearth doctor` shows the cure."
    )


def cure(system_info: str = "") -> str:
    """Shell commands that build a library without the instructions that fail.

    That is AMX, if the library uses it or did not report its features (x86 with GCC); else all
    instructions that are specific to this CPU.
    """
    flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    settings = f'CFLAGS="{flags}" CXXFLAGS="{flags}"'
    if system_info and "AMX_INT8 = 1" not in system_info:
        settings = 'CMAKE_ARGS="-DGGML_NATIVE=off"'
    return (
        f"{settings} \\\n"
        f"  {Path(sys.executable).name} -m pip install --force-reinstall --no-cache-dir \\\n"
        "  --no-binary llama-cpp-python llama-cpp-python==0.3.36"
    )


def library_fingerprint() -> str:
    """Identifies the installed library and this CPU.

    A hash of path, size and time of each of the library's files, and of the CPU's features.

    Raises:
        BackendUnavailable: llama_cpp is not installed.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise BackendUnavailable(
            "The llama.cpp backend is not installed.",
            INSTALL,
        )
    folders = [Path(location) for location in spec.submodule_search_locations]
    folders += [folder / "lib" for folder in folders]
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override:
        folders.append(Path(override))
    cpu = [cpu_fields().get(name) for name in ("flags", "features", "cpu part")]
    digest = hashlib.sha256(repr((cpu_name(), *cpu)).encode())
    for folder in folders:
        for file in sorted(folder.glob("*")):
            if file.is_file():
                facts = file.stat()
                digest.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _try(*, extra_buffers: bool, folder: Path) -> Outcome:
    """Run the probe in a child process.

    Raises `BackendUnavailable` if the library does not load.
    """
    module = "hearth.backends.llamacpp.selftest"
    command = [sys.executable, "-P", "-m", module, "--probe", str(folder)]
    command += ["--parent", str(os.getpid())]
    command += ["--extra-buffers"] if extra_buffers else []
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(f"the self-test did not end in {TIMEOUT_S:.0f} s", "", is_proof=False)
    info, errors = _report(done.stdout)
    if done.returncode < 0:
        name = signal_name(-done.returncode)
        return Outcome(f"it died of {name}", info, is_proof=name in _CRASHES)
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        if done.returncode == _UNAVAILABLE:
            raise BackendUnavailable("".join(last), f"Build it again:\n{cure(info)}")
        failure = f"it ended with code {done.returncode} ({''.join(last) or 'no message'})"
        return Outcome(failure, info, is_proof=done.returncode in _WINDOWS_CRASHES)
    wrong = {name: nmse for name, nmse in errors.items() if not nmse <= NMSE_BOUND}
    if wrong or not errors:
        listed = ", ".join(f"{name} off by NMSE {nmse:.2g}" for name, nmse in wrong.items())
        return Outcome(f"its results are wrong ({listed or 'none were given'})", info)
    return Outcome("", info)


def _report(output: bytes) -> tuple[str, dict[str, float]]:
    """System info and NMSE by format, from the JSON lines that the child wrote before its end."""
    info, errors = "", {}
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            info = str(said.get("system_info", info))
            if "format" in said:
                errors[str(said["format"])] = float(said["nmse"])
    return info, errors


def _load(path: Path, fingerprint: str) -> Verdict | None:
    """The stored verdict; None if there is none or it cannot be read, which only costs a test."""
    try:
        stored = Verdict(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    is_sound = isinstance(stored.extra_buffers_safe, bool) and stored.fingerprint == fingerprint
    return stored if is_sound else None


def _store(path: Path, found: Verdict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(found))


def _probe(folder: Path, extra_buffers: bool) -> None:
    """In the child: print the library's features, then the error of each format."""
    print(json.dumps({"system_info": load_library().system_info}), flush=True)
    for name in probe_model.FORMATS:
        quantized, exact = probe_model.write_pair(folder, name)
        logits = _logits(quantized, extra_buffers)
        expected = _logits(exact, extra_buffers)
        nmse = float(np.sum((logits - expected) ** 2) / np.sum(expected**2))
        print(json.dumps({"format": name, "nmse": nmse}), flush=True)


def _logits(path: Path, extra_buffers: bool) -> NDArray[np.float32]:
    """Logits after a prefill and after each of `_STEPS` steps: [1 + _STEPS, vocabulary] float32."""
    settings = ModelSettings(
        context=probe_model.PAIR_CONTEXT,
        max_sessions=1,
        max_batch_tokens=_PREFILL,
        kv_type="f32",
        flash_attention=False,
    )
    runner = probe_model.open_probe(path, settings, 1, extra_buffers=extra_buffers)
    tokens = np.random.default_rng(1).integers(0, probe_model.VOCAB, _PREFILL + _STEPS).tolist()
    rows = [Row(0, 0, tokens[:_PREFILL], outputs=1, handle=0)]
    rows += [Row(0, at, [tokens[at]], outputs=1, handle=0) for at in range(_PREFILL, len(tokens))]
    logits = [runner.step(StepPlan((row,))).logits[0][0].copy() for row in rows]
    runner.close()
    return np.stack(logits)


def _verify() -> int:
    """Print whether the installed library passes; return the exit code of `--verify`."""
    try:
        result = verdict(None)
    except BackendUnavailable as error:
        print(error.message)
        return 1
    if not result.extra_buffers_safe:
        print(f"With repacked weights: {result.reason}.")
        return 1
    print(f"The library passes: {result.system_info}")
    return 0


def _main() -> int:
    parser = argparse.ArgumentParser(description="Probe the installed llama.cpp.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--verify", action="store_true", help="exit with 1 if it is not sound")
    mode.add_argument("--probe", type=Path, metavar="FOLDER", help="compute models written there")
    parser.add_argument("--parent", type=int, help="with --probe: end when this process does")
    parser.add_argument("--extra-buffers", action="store_true", help="with repacked weights")
    arguments = parser.parse_args()
    if arguments.verify:
        return _verify()
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A crash here is a result.
    try:
        _probe(arguments.probe, arguments.extra_buffers)
    except BackendUnavailable as error:
        print(error.message, file=sys.stderr)
        return _UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(_main())
