"""The job that trains Medusa heads, run by `hearth.app.jobs` in a process of its own.

The question: see `question`. Progress: {"phase", "done", "total", "eta_s": remaining seconds of the
phase, or null}. The answer: {"path", "size_bytes", "heads", "tokens", "vocabulary", "accepted",
"seconds", "wall_s"}. A job that was stopped or killed continues when it is started again with the
same question.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hearth.app.jobs.child import Reporter
from hearth.app.paths import Paths, own_folder
from hearth.backends.contract.models import ModelSpec
from hearth.quant.fingerprint import WeightFile, fingerprint

_VERSION: Final = 2
"""Version of the training; work begun by another version is not continued."""
_CONTEXT: Final = 1024
_ETA_AFTER_S: Final = 2.0


def question(
    spec: ModelSpec,
    files: list[Path],
    paths: Paths,
    *,
    text: str,
    is_self: bool,
    are_questions: bool,
    target: Path,
    options: Mapping[str, int],
) -> dict[str, Any]:
    """The question for the job.

    Args:
        files: files of the model; if one changes, training begins again.
        text: the text to learn from; with `is_self`, the text that the model's prompts are made of.
        are_questions: whether each line of the text is one question.
        options: fields of `HeadsPlan`.
    """
    asked = {
        "spec": asdict(spec),
        "text": text,
        "self": is_self,
        "are_questions": are_questions,
        "options": dict(options),
    }
    key = fingerprint(WeightFile(one, 0) for one in files)
    digest = hashlib.blake2b(f"{_VERSION} {key}\n".encode(), digest_size=12)
    digest.update(json.dumps({**asked, "spec": spec.path}, sort_keys=True).encode())
    folder = own_folder(own_folder(paths.cache / "medusa") / digest.hexdigest())
    return {**asked, "target": str(target), "folder": str(folder), "cache_dir": str(paths.cache)}


def train(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """In the child process: train, write the file, and delete the working folder.

    Raises:
        InvalidParameter: there is too little text.
        HearthError: the native runner cannot open the model.
    """
    from dataclasses import replace

    import msgspec

    from hearth.backends.contract.messages import Message
    from hearth.backends.contract.requests import Request
    from hearth.backends.native.heads_training import (
        HeadsPlan,
        pieces_of,
        prompts_of,
        train_heads,
        write_heads,
    )
    from hearth.backends.native.load import open_model
    from hearth.backends.text.renderer import Renderer
    from hearth.backends.worker.prompts import Prompts

    began = time.perf_counter()
    plan, folder = HeadsPlan(**question["options"]), Path(question["folder"])
    spec = msgspec.convert(question["spec"], ModelSpec)
    settings = replace(
        spec.settings,
        context=_CONTEXT,
        max_sessions=plan.sessions,
        max_batch_tokens=_CONTEXT,
        kv_budget_bytes=None,
        kv_disk_budget_bytes=0,
        speculate="off",
        draft="",
    )
    phase, since, first = "", time.monotonic(), 0

    def report(name: str, done: int, total: int) -> None:
        nonlocal phase, since, first
        if name != phase:
            phase, since, first = name, time.monotonic(), done
        reporter.check()
        passed = time.monotonic() - since
        eta = None
        if passed > _ETA_AFTER_S and done > first:
            eta = round(passed * (total - done) / (done - first), 1)
        reporter.progress(phase=name, done=done, total=total, eta_s=eta)

    loaded = open_model(replace(spec, settings=settings))
    renderer = Renderer()
    try:
        prompts: list[list[int]] = []
        if question["self"]:
            chat_prompts = Prompts(loaded.info.name, loaded.tokenizer, loaded.templates, renderer)
            for one in prompts_of(question["text"], are_questions=question["are_questions"]):
                if loaded.templates:
                    prompts.append(
                        list(chat_prompts.prepare(Request(messages=(Message("user", one),))).ids)
                    )
                else:
                    ids = loaded.tokenizer.encode(one, special=False, add_bos=True)
                    prompts.append(ids[: _CONTEXT // 2])
        texts = [] if question["self"] else pieces_of(loaded, question["text"], plan)
        trained = train_heads(loaded, texts, prompts, plan, folder, report)
    finally:
        renderer.close()
        loaded.runner.close()
    target = Path(question["target"])
    write_heads(trained.weights, target)
    shutil.rmtree(folder)
    assert trained.weights.vocabulary is not None
    return {
        "path": str(target),
        "size_bytes": target.stat().st_size,
        "heads": trained.weights.count,
        "tokens": trained.tokens,
        "vocabulary": len(trained.weights.vocabulary),
        "accepted": trained.accepted,
        "seconds": trained.seconds,
        "wall_s": round(time.perf_counter() - began, 1),
    }
