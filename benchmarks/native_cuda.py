"""The native runner on an NVIDIA card. Run by `make gpu`.

    python benchmarks/native_cuda.py gemv|attention|end [--results FILE] [--seconds 400]

- gemv, attention: see `kernels_cuda.py`.
- end: streams of models of the shape of Llama 3 8B with random weights: decoding of one session as
  a share of the bandwidth that copying reaches in the same run, several sessions, prompts, memory,
  and 64 sessions compared with transformers' continuous batching. Tokens generated from packed
  weights are compared with those from the same weights unpacked.

Each line is printed, and appended to --results as JSON, when it is measured; after --seconds the
rest is left out. Where something is not installed or fails, a line reports it. A line with a target
names the target.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import kernels_cuda
import torch
from kernels_cuda import Card, GraphCard, Skipped
from native_beside_transformers import Ours, Prompts, Theirs, engine_side
from torch import nn

from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.transformers_side import TransformersModel
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.native.graphs import Graph
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.packed import PackedEmbedding, PackedLinear
from hearth.backends.native.plan import plan_memory
from hearth.kernels.cuda.matrix import has_triton
from hearth.kernels.cuda.packings import has_graphs
from hearth.kernels.device import free_bytes
from hearth.kernels.packed import prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.families.config import LayerConfig, ModelConfig, Rope
from hearth.quant.gguf.quantize_types import _is_sensitive
from random_weights import random_weight

SHAPE: Final = ModelConfig(
    "llama",
    vocab_size=128_256,
    width=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    feed_forward=14_336,
    layers=(LayerConfig(Rope(500_000.0, 128)),) * 32,
    context=8192,
    norm_eps=1e-5,
    tied=False,
)
"""The configuration of Llama 3 8B."""
DTYPE: Final = torch.bfloat16
CONTEXT: Final = 4096
MOST: Final = 64
"""Maximum number of sessions."""
TOKENS: Final = 64
"""Number of tokens that each session decodes."""
SHORT, LONG = 32, 2048
"""Lengths in tokens of the prompts before decoding, and of the prompts that are measured."""
LENGTHS: Final = range(97, 104)
"""Lengths of prompts that are each the first of their length."""
ROUNDS: Final = 3
DRAWN: Final = SamplingParams(seed=1)
"""Sampling parameters for runs that do not take the likeliest tokens."""
FEW: Final = (4, 16)
"""Numbers of sessions whose decoding is measured, in addition to one."""
COMPARED_LAYERS: Final = 2
"""Number of layers of the models whose tokens are compared."""
ALONE: Final = {"bf16": 0.8, "FP8": 0.7, "INT4": 0.6, "Q4_K_M": 0.6}
"""The share of the bandwidth that decoding alone should reach, by kind of weights."""
OPTIONS: Final[dict[str, dict[str, Any]]] = {"INT4": {"group": 128}, "FP8": {"group": 0}}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the part `end`."""

    what: str
    by: str
    value: float
    unit: str
    wanted: str = ""
    """The number it is compared with."""
    is_met: bool | None = None


def at_least(what: str, by: str, value: float, unit: str, least: float) -> Figure:
    """A figure that should be at least `least`."""
    return Figure(what, by, value, unit, f"at least {least:g}", value >= least)


class Model:
    """A decoder with random weights under the engine.

    Args:
        kind: kind of weights, see `random_decoder`.
        is_plain: the weights are unpacked.

    Attributes:
        read_bytes: bytes of the weights that each step reads.
    """

    def __init__(
        self,
        kind: str,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        sessions: int,
        is_plain: bool = False,
    ) -> None:
        decoder, self.file_bytes = random_decoder(kind, config, device, dtype, is_plain=is_plain)
        kept = [one.nbytes for one in (*decoder.parameters(), *decoder.buffers())]
        embedding = decoder.embedding
        looked_up = [one.nbytes for one in (*embedding.parameters(), *embedding.buffers())]
        self.read_bytes = sum(kept) - sum(looked_up)
        settings = ModelSettings(
            context=config.context,
            max_sessions=sessions,
            max_batch_tokens=LONG,
            kv_type="f32" if dtype == torch.float32 else "f16",
        )
        plan = plan_memory(
            settings,
            config,
            device=device,
            dtype=dtype,
            compute_dtype=dtype,
            weight_bytes=0,
            available_bytes=free_bytes(device),
            triton=has_triton(device.type),
            graphs=has_graphs() and device.type == "cuda",
        )
        self.side: EngineSide = engine_side(decoder, plan)
        self.ours = Ours(self.side)


def random_decoder(
    kind: str, config: ModelConfig, device: torch.device, dtype: torch.dtype, *, is_plain: bool
) -> tuple[Decoder, int]:
    """A decoder, and the size in bytes of a file of its weights, without the header.

    Args:
        kind: bf16 (all of `dtype`), FP8 or INT4 (all but the embedding and the output matrix), or
            Q4_K_M with the types of llama.cpp's mix.
        is_plain: the same numbers are unpacked to `dtype`.
    """
    torch.manual_seed(0)
    decoder = Decoder(config, device, dtype, activations=dtype, context=config.context)
    drawn: dict[tuple[str, int, int], PackedWeight] = {}
    size = 0

    def part(packing: str, outputs: int, inputs: int) -> PackedWeight:
        """A matrix drawn once per shape; every matrix has its own memory."""
        nonlocal size
        if not packing:
            plain = torch.randn(outputs, inputs, device=device, dtype=dtype) / inputs**0.5
            size += plain.nbytes
            return PackedWeight(plain)
        key = packing, outputs, inputs
        if key not in drawn:
            drawn[key] = random_weight(packing, outputs, inputs, **OPTIONS.get(packing, {}))
        made = drawn[key].to(device)
        made = replace(
            made,
            **{
                name: tensor.clone()
                for name in ("weight", "scales", "zeros")
                if (tensor := getattr(made, name)) is not None
            },
        )
        size += sum(one.nbytes for one in made.tensors)
        return PackedWeight(made.unpacked(dtype)) if is_plain else made

    def put(place: str, parts: list[PackedWeight]) -> None:
        parent, _, leaf = place.rpartition(".")
        module = decoder.get_submodule(place)
        if any(one.packing for one in parts):
            matrix = prepare(parts, exact=False)
            is_table = leaf == "embedding"
            made = PackedEmbedding(matrix, dtype) if is_table else PackedLinear(matrix)
            setattr(decoder.get_submodule(parent), leaf, made)
        else:
            weight = torch.cat([one.weight for one in parts])
            module.weight = nn.Parameter(weight, requires_grad=False)

    is_mix = kind == "Q4_K_M"
    base = {"bf16": "", "Q4_K_M": "Q4_K"}.get(kind, kind)
    width, keys = config.width, config.kv_heads * config.head_dim
    queries, hidden, count = config.heads * config.head_dim, config.feed_forward, len(config.layers)
    for module in list(decoder.modules()):
        for leaf, tensor in list(module.named_parameters(recurse=False)):
            if tensor.dtype == torch.float32 and tensor.ndim == 1:  # A norm.
                ones = torch.ones(tensor.shape, device=device)
                setattr(module, leaf, nn.Parameter(ones, requires_grad=False))
                size += ones.nbytes
    for layer in range(count):
        more = "Q6_K" if is_mix and _is_sensitive(layer, count) else base
        place = f"layers.{layer}"
        rows = [part(base, queries, width), part(base, keys, width), part(more, keys, width)]
        put(f"{place}.qkv", rows)
        put(f"{place}.out", [part(base, width, queries)])
        put(f"{place}.gate_up", [part(base, hidden, width), part(base, hidden, width)])
        put(f"{place}.down", [part(more, width, hidden)])
    put("embedding", [part("Q4_K" if is_mix else "", config.vocab_size, width)])
    put("output", [part("Q6_K" if is_mix else "", config.vocab_size, width)])
    return decoder, size


def last_graph(model: Model) -> Graph | None:
    """The graph of the last step that had one."""
    graphs = model.side._runner.graphs  # type: ignore[attr-defined]
    if graphs is None or not len(graphs):
        return None
    *_, (_, graph) = graphs._graphs.recorded.values()
    found: Graph = graph
    return found


def graph_seconds(graph: Graph) -> float:
    """Seconds of a step on the card alone, from replaying its graph again and again."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(TOKENS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / TOKENS


def busy_clock(graph: Graph) -> float | None:
    """Clock in MHz of the multiprocessors under load: cards of one kind differ, and a hot card is
    slower. None if nvidia-smi does not report it.
    """
    for _ in range(4 * TOKENS):
        graph.replay()
    found = asked("clocks.sm")
    torch.cuda.synchronize()
    return float(found) if found.isdecimal() else None


def asked(what: str) -> str:
    """What nvidia-smi reports for the first card; "?" if it is missing or fails."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return found.stdout.strip()


def median(call: Callable[[], float]) -> float:
    """Median seconds. The first call does not count: it compiles kernels and records graphs."""
    call()
    return statistics.median(call() for _ in range(ROUNDS))


def measure_end(card: Card, peak: float) -> Iterator[Figure | Skipped]:
    """Measure streams."""
    device = card.device
    alone: dict[tuple[str, int], float] = {}
    """Seconds per step, by kind of weights and number of sessions."""
    prefills: dict[str, float] = {}
    for kind, share in ALONE.items():
        try:
            before = card.allocated_bytes()
            model = Model(kind, SHAPE, device, DTYPE, sessions=MOST)
            yield from _of_model(model, kind, share, peak, alone, prefills)
            if kind == "bf16":
                yield from _beside_batching(model, device)
            if kind == "Q4_K_M":
                ratio = (model.read_bytes + _table_bytes(model)) / model.file_bytes
                yield Figure(
                    "memory of weights by their file", kind, ratio, "", "at most 1.1", ratio <= 1.1
                )
                taken = card.allocated_bytes() - before
                yield Figure("memory with a pool of 4,096 tokens", kind, taken / 1e9, "GB")
            del model
        except Exception as error:  # noqa: BLE001 - A failure must not prevent other lines.
            yield Skipped("streams", kind, f"{type(error).__name__}: {error}")
        _give_back(device)
    for kind in ("INT4", "Q4_K_M", "FP8"):
        try:
            yield _same_tokens(kind, device)
        except Exception as error:  # noqa: BLE001 - as above
            yield Skipped("greedy tokens", kind, f"{type(error).__name__}: {error}")
        _give_back(device)


def _of_model(
    model: Model,
    kind: str,
    share: float,
    peak: float,
    alone: dict[tuple[str, int], float],
    prefills: dict[str, float],
) -> Iterator[Figure]:
    prompts = Prompts(SHAPE.vocab_size)
    for sessions in (1, *FEW):
        seconds = median(lambda n=sessions: model.ours.decode(prompts(n, SHORT), TOKENS)) / TOKENS
        alone[kind, sessions] = seconds
        yield Figure(f"decode × {sessions}", kind, sessions / seconds, "tok/s")
        if sessions == 1:
            greedy, model.side.params = model.side.params, DRAWN
            drawn = median(lambda: model.ours.decode(prompts(1, SHORT), TOKENS)) / TOKENS
            model.side.params = greedy
            yield Figure("decode × 1, drawn", kind, 1 / drawn, "tok/s")
            graph = last_graph(model)
            if graph is not None:
                yield Figure("decode × 1 without the host", kind, 1 / graph_seconds(graph), "tok/s")
                clock = busy_clock(graph)
                if clock is not None:
                    yield Figure("clock of multiprocessors", kind, clock, "MHz")
            yield at_least(
                "decode × 1", kind, model.read_bytes / seconds / peak, "of copying", share
            )
        if kind == "INT4" and ("bf16", sessions) in alone:
            ratio = alone["bf16", sessions] / seconds
            yield at_least(f"decode × {sessions} by bf16", kind, ratio, "times", 1.8)
    prefills[kind] = median(lambda: model.ours.prefill(prompts(1, LONG)[0]))
    yield Figure(f"prefill {LONG}", kind, LONG / prefills[kind], "tok/s")
    others = [model.ours.prefill(prompts(1, length)[0]) for length in LENGTHS]
    what = f"prefill {LENGTHS[0]} to {LENGTHS[-1]}, each once"
    yield Figure(what, kind, 1e3 * statistics.median(others), "ms")
    if kind == "FP8" and "bf16" in prefills:
        ratio = prefills["bf16"] / prefills[kind]
        yield at_least(f"prefill {LONG} by bf16", kind, ratio, "times", 1.3)


def _beside_batching(model: Model, device: torch.device) -> Iterator[Figure | Skipped]:
    """Both sides compute the prompts and tokens of `MOST` sessions that arrive together."""
    prompts = Prompts(SHAPE.vocab_size)
    what = f"{MOST} sessions"
    seconds = median(lambda: model.ours.whole(prompts(MOST, SHORT), TOKENS))
    yield Figure(what, "bf16", MOST * TOKENS / seconds, "tok/s")
    by = "transformers, continuous batching"
    try:
        theirs = theirs_of(SHAPE, device)
        other = median(partial(theirs.batcher, prompts(MOST, SHORT), TOKENS, is_sized=True))
    except Exception as error:  # noqa: BLE001 - Not installed, or not able to.
        yield Skipped(what, by, f"{type(error).__name__}: {error}")
        return
    yield Figure(what, by, MOST * TOKENS / other, "tok/s")
    yield at_least(f"{what} by transformers", "bf16", other / seconds, "times", 3.0)


def theirs_of(config: ModelConfig, device: torch.device) -> Theirs:
    """A transformers model of the same shape, with random weights."""
    import transformers

    about = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        num_hidden_layers=len(config.layers),
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.feed_forward,
        max_position_embeddings=config.context,
        eos_token_id=None,
        bos_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with device:
            model = transformers.LlamaForCausalLM(about).eval()
    finally:
        torch.set_default_dtype(before)
    threads = torch.get_num_threads()
    return Theirs(TransformersModel(model, threads, threads))


def _same_tokens(kind: str, device: torch.device) -> Figure:
    """How many of `TOKENS` greedy tokens agree, before the first that differs, between packed
    weights and the same numbers unpacked, in float32.
    """
    config = replace(SHAPE, layers=SHAPE.layers[:COMPARED_LAYERS])
    prompt = Prompts(SHAPE.vocab_size)(1, SHORT)
    written = []
    for is_plain in (False, True):
        model = Model(kind, config, device, torch.float32, sessions=1, is_plain=is_plain)
        model.side.start(prompt, SHORT + TOKENS + 8)
        model.side.decode(TOKENS - 1)
        written.append(model.side.histories()[0][SHORT : SHORT + TOKENS])
        del model
        _give_back(device)
    pairs = list(zip(*written, strict=True))
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return at_least("greedy tokens as unpacked, f32", kind, same, "tokens", TOKENS)


def _table_bytes(model: Model) -> int:
    decoder = model.side._runner.decoder  # type: ignore[attr-defined]
    table = decoder.embedding
    return sum(one.nbytes for one in (*table.parameters(), *table.buffers()))


def _give_back(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


PARTS: Final[dict[str, Callable[[Card, float], Iterator[Any]]]] = {
    "gemv": kernels_cuda.measure_gemv,
    "attention": kernels_cuda.measure_attention,
    "end": measure_end,
}


@torch.no_grad()
def run(part: str, card: Card, results: Path | None, seconds: float) -> int:
    """Measure a part and write each line when it is measured.

    Returns:
        The number of lines.
    """
    end, count = time.monotonic() + seconds, 0
    peak = kernels_cuda.bandwidth(card)
    print(f"copying: {peak / 1e9:,.0f} GB/s")
    for line in PARTS[part](card, peak):
        print(shown(line), flush=True)
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, **asdict(line)}) + "\n")
        count += 1
        if time.monotonic() > end:
            print(f"{seconds:.0f} s have passed: the rest is left out.")
            break
    return count


def shown(line: kernels_cuda.Line | Figure) -> str:
    """A line as text."""
    if isinstance(line, Skipped):
        return f"{line.what:34} {line.by:20} not measured: {line.why}"
    if isinstance(line, Figure):
        held = "" if line.is_met is None else f"   {line.wanted}: {'yes' if line.is_met else 'NO'}"
        return f"{line.what:34} {line.by:20} {line.value:10.2f} {line.unit}{held}"
    error = "" if line.error is None else f"   NMSE {line.error:.1e}"
    if isinstance(line, kernels_cuda.Computed):
        rate = f"{line.tflops:8.0f} TFLOP/s"
        return f"{line.what:24} {line.by:24} {line.microseconds:10.1f} µs {rate}{error}"
    return (
        f"{line.what:24} {line.by:20} {line.microseconds:10.1f} µs {line.gb_per_s:8.0f} GB/s"
        f" {line.share:6.1%}{error}"
    )


def versions() -> dict[str, str]:
    """The versions that figures depend on."""
    import triton

    return {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "driver": asked("driver_version"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no NVIDIA card here: there is nothing to measure.")
    found = versions()
    print(", ".join(f"{name} {version}" for name, version in found.items()))
    if options.results is not None:
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": options.part, "versions": found}) + "\n")
    run(options.part, GraphCard(), options.results, options.seconds)


if __name__ == "__main__":
    main()
