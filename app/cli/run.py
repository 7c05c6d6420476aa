"""`hearth run`: sends one request and prints its answer to stdout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hearth.app.answer import Answer
from hearth.app.chosen import Chosen
from hearth.app.cli.asking import (
    announce,
    answer_json,
    ask,
    ending,
    require_template,
    statistics,
)
from hearth.app.cli.options import complete_model, json_option, model_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.cli.typed import read_prompt, somebody_is_there
from hearth.app.exit_codes import ExitCode
from hearth.app.guide_pages import page_for, page_location
from hearth.app.session.turn import reportable_seed
from hearth.app.settings import Layer
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request
from hearth.backends.errors import from_info


@click.command("run")
@click.argument("model", shell_complete=complete_model)
@click.argument("prompt", nargs=-1)
@click.option(
    "--raw", is_flag=True, help="Complete the text as it stands, without the chat template."
)
@click.option("--stats", is_flag=True, help="Print token counts and speeds to stderr.")
@json_option
@model_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    model: str,
    prompt: tuple[str, ...],
    raw: bool,
    stats: bool,
    as_json: bool,
    **_: Any,
) -> int:
    """Ask MODEL once.

    The PROMPT is what is piped in, then what is typed; with neither, the chat opens.

    MODEL is a name that `hearth list` shows, or a path to a GGUF file or to a
    folder of safetensors.
    """
    state: State = ctx.obj
    flags = typed_settings(ctx)
    if "logprobs" in flags and not as_json:
        raise click.UsageError("--logprobs needs --json, which prints them.")
    if "system" in flags and raw:
        raise click.UsageError("--raw has no system prompt: write it into the text.")
    text = read_prompt(prompt)
    if not text:
        if raw or as_json or prompt or not somebody_is_there():
            raise click.UsageError(
                "There is no prompt. Type it after the model's name, or pipe it in."
            )
        from hearth.app.cli.chat import open_chat

        return open_chat(state, model, flags, stats=stats)
    return run_once(state, model, text, flags, raw=raw, stats=stats, as_json=as_json)


def run_once(
    state: State,
    model: str,
    text: str,
    flags: Layer,
    *,
    raw: bool = False,
    stats: bool = False,
    as_json: bool = False,
) -> int:
    """Ask the model called `model` once and print its answer; returns the exit code."""
    chosen = state.choose(model, flags)
    request = build_request(chosen, text, raw=raw)
    with state.link() as link:
        with state.output.note_if_slow(f"loading {chosen.found.name} …"):
            info = link.info(chosen.spec)
        if not raw:
            require_template(info)
        if not as_json:
            announce(state, info, stats=stats)
        writer, thoughts = state.output.stream(), state.output.thoughts()

        def show(piece: str) -> None:
            if not as_json:
                thoughts.end()
                writer.write(piece)

        def think(piece: str) -> None:
            if not as_json:
                thoughts.write(piece)

        answer = ask(link, chosen.spec, request, show, think)
    if as_json:
        if stats:
            state.output.note(statistics(answer, request.sampling.seed))
        state.output.json(answer_json(answer, info, request.sampling.seed))
        return exit_code(answer)
    thoughts.end()
    writer.end()
    for note in (*answer.notices, ending(answer, info, request.max_tokens)):
        if note:
            state.output.note(note)
    if stats:
        state.output.note(statistics(answer, request.sampling.seed))
    if answer.error is not None:
        state.output.error(from_info(answer.error))
    elif chosen.found.origin == "bundled" and not raw and (page := page_for(text)):
        state.output.note(f"See {page_location(page)}")
    return exit_code(answer)


def build_request(chosen: Chosen, text: str, *, raw: bool) -> Request:
    """The request for `text` with the settings of `chosen`, and a seed that can be reported."""
    use = chosen.use
    sampling = replace(use.sampling, seed=reportable_seed(use))
    request = Request(
        sampling=sampling,
        max_tokens=use.max_tokens,
        attention_sinks=use.attention_sinks,
        stop=use.stop,
    )
    if raw:
        return replace(request, text=text)
    system = (Message("system", use.system),) if use.system else ()
    return replace(request, messages=(*system, Message("user", text)))


def exit_code(answer: Answer) -> int:
    """The exit code of a command that ends with `answer`."""
    if answer.error is not None:
        return from_info(answer.error).exit_code
    return ExitCode.INTERRUPTED if answer.reason == "cancelled" else ExitCode.OK
