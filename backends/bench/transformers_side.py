"""transformers on the same weights as the native runner: its `generate`, and its continuous
batching (`generate_batch`). This is the only module that imports transformers, and only when it is
used.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hearth.backends.bench.reference_room import missing
from hearth.backends.errors import DoesNotFit, UnsupportedModel

_PAGE = 256
"""Tokens of a page in transformers' continuous batching, by its default."""
_MEASURE_LESS = "Measure fewer --sessions, or use a smaller --depth."


@dataclass(slots=True)
class TransformersModel:
    """A causal model of transformers, and how many threads it may use on a processor.

    Attributes:
        threads, batch_threads: numbers of threads for decoding, and for prompts.
    """

    model: Any
    threads: int
    batch_threads: int

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device


def load_transformers(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
    batch_threads: int,
) -> TransformersModel:
    """The model in `folder`, with the attention that transformers chooses for it. Nothing is
    downloaded, and no code from the folder is run.

    Raises:
        BackendUnavailable: transformers is not installed.
        UnsupportedModel: transformers cannot load this model.
        DoesNotFit: there is no memory for its weights.
    """
    try:
        import transformers
    except ImportError as error:
        raise missing(str(error)) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True
        )
        model = model.to(device).eval()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFit(
            "There is no memory for the weights of transformers beside our own.",
            "Measure without --reference, or a smaller model.",
        ) from error
    except Exception as error:
        raise _unsupported(f"load {folder}", error) from error
    # Replaces the settings of the folder: greedy decoding, and no token ends a text.
    model.generation_config = _greedy(None)
    return TransformersModel(model, threads, batch_threads)


class GenerateSide:
    """`generate` with the cache that it makes by default; all sessions are one batch.

    Histories are cut to the length of the shortest, because padding the others would cost more.
    """

    def __init__(self, model: TransformersModel) -> None:
        self._loaded = model
        self._model = model.model
        self._ids = torch.zeros((0, 0), dtype=torch.long)
        self._cache: Any = None

    @torch.inference_mode()
    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """See `Reference`; `generate` does not share prompts, so each one is computed."""
        import transformers

        length = min(map(len, histories))
        rows = [history[:length] for history in histories]
        self._ids = torch.tensor(rows, device=self._loaded.device)
        self._cache = transformers.DynamicCache(config=self._model.config)
        if length > 1:
            with _using_threads(self._loaded.batch_threads):
                self._model(
                    self._ids[:, :-1],
                    past_key_values=self._cache,
                    use_cache=True,
                    logits_to_keep=1,
                )

    @torch.inference_mode()
    def decode(self, steps: int) -> float:
        """Seconds of one call of `generate` that continues with `steps` tokens."""
        mask = torch.ones_like(self._ids)
        with _using_threads(self._loaded.threads):
            self._wait()
            began = time.perf_counter()
            self._ids = self._model.generate(
                self._ids,
                attention_mask=mask,
                past_key_values=self._cache,
                generation_config=_greedy(steps),
            )
            self._wait()
            return time.perf_counter() - began

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one forward pass with logits for the last token only."""
        ids = torch.tensor([prompt], device=self._loaded.device)
        with _using_threads(self._loaded.batch_threads):
            began = time.perf_counter()
            logits = self._model(ids, use_cache=True, logits_to_keep=1).logits
            int(logits[0, -1].argmax())
            return time.perf_counter() - began

    def clear(self) -> None:
        """Forget all sessions."""
        self._ids = torch.zeros((0, 0), dtype=torch.long)
        self._cache = None

    def close(self) -> None:
        """Let go of the weights."""
        self.clear()
        self._model = None

    def _wait(self) -> None:
        """Wait until a GPU has finished its work."""
        if self._loaded.device.type == "cuda":
            torch.cuda.synchronize(self._loaded.device)


class BatchingSide:
    """`generate_batch`. Its manager is kept from one `clear` to the next, so that it is set up once
    for all measurements of a test; it works in a thread that it starts for each call.
    """

    def __init__(self, model: TransformersModel) -> None:
        self._loaded = model
        self._model = model.model
        self._histories: list[list[int]] = []

    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """See `Reference`; `decode` computes the prompts before its clock starts, and transformers
        itself finds their common prefix.
        """
        self._histories = histories

    def decode(self, steps: int) -> float:
        """Seconds of `steps` tokens for each session, at the speed measured while all sessions
        decode.
        """
        with _using_threads(self._loaded.threads):
            results = self._run(self._histories, steps + 1, keep=True)
        self._histories = [
            history + one.generated_tokens[:steps]
            for history, one in zip(self._histories, results, strict=True)
        ]
        return steps * len(results) / tok_per_s([one.timestamps for one in results])

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from the arrival of a request with `prompt` to its only token."""
        with _using_threads(self._loaded.batch_threads):
            (result,) = self._run([prompt], 1, keep=True)
        return float(result.timestamps[0] - result.created_time)

    def whole(self, prompts: list[list[int]], count: int, *, is_sized: bool = True) -> float:
        """Seconds of one complete call: its setup, the prompts, and `count` tokens for each prompt.

        Args:
            is_sized: the cache is as large as these sessions need. False: transformers chooses the
                size, which is most of the remaining memory.
        """
        self.clear()
        began = time.perf_counter()
        self._run(prompts, count, keep=False, is_sized=is_sized)
        return time.perf_counter() - began

    def clear(self) -> None:
        """Forget all sessions, and the cached parts of their prompts."""
        self._histories = []
        if self._model is not None:
            self._model.destroy_cached_continuous_batching_manager()

    def close(self) -> None:
        """Let go of the weights."""
        self.clear()
        self._model = None

    def _run(
        self, prompts: list[list[int]], count: int, *, keep: bool, is_sized: bool = True
    ) -> list[Any]:
        """A `GenerationOutput` with `count` tokens for each of `prompts`.

        Raises:
            DoesNotFit: there is no memory for the cache.
            UnsupportedModel: transformers does not support this for the model.
        """
        import transformers

        pages = sum(math.ceil((len(prompt) + count) / _PAGE) + 1 for prompt in prompts)
        config = transformers.ContinuousBatchingConfig
        names = {field.name for field in dataclasses.fields(config)}
        page = "page_size" if "page_size" in names else "block_size"  # Its name before 5.20.
        sized = config(num_blocks=pages, **{page: _PAGE})
        try:
            outputs = self._model.generate_batch(
                inputs=prompts,
                generation_config=_greedy(count, eos_token_id=-1),
                continuous_batching_config=sized if is_sized else None,
                record_timestamps=True,
                persistent_manager=keep,
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise DoesNotFit(
                f"There is no memory for transformers' cache of {pages * _PAGE:,} tokens.",
                _MEASURE_LESS,
            ) from error
        except Exception as error:
            raise _unsupported("batch this model's sessions", error) from error
        results = list(outputs.values())
        if len(results) < len(prompts) or any(len(one.timestamps) < count for one in results):
            errors = [one.error for one in results if one.error]
            raise _unsupported("batch this model's sessions", (errors or ["no result"])[0])
        return results


def tok_per_s(times: list[list[float]]) -> float:
    """Tokens per second of all sessions while all of them decode; if they never decode at the same
    time, from the first token to the last.

    Args:
        times: for each session, the times of its tokens, two or more.
    """
    began, ended = max(own[0] for own in times), min(own[-1] for own in times)
    if ended <= began:
        began, ended = min(own[0] for own in times), max(own[-1] for own in times)
    tokens = sum(began < when <= ended for own in times for when in own)
    return tokens / (ended - began)


def _unsupported(what: str, why: object) -> UnsupportedModel:
    return UnsupportedModel(
        f"transformers cannot {what}: {why}", "Measure without --reference; jobs.log has more."
    )


def _greedy(count: int | None, **more: Any) -> Any:
    """A `GenerationConfig` for greedy decoding of `count` tokens."""
    import transformers

    return transformers.GenerationConfig(
        max_new_tokens=count, do_sample=False, pad_token_id=0, **more
    )


@contextmanager
def _using_threads(count: int) -> Iterator[None]:
    """PyTorch uses `count` threads in the block, and the previous number afterwards, on which the
    runner relies.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
