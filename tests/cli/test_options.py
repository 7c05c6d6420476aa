"""Options that commands share: which there are, and what becomes of what is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hearth.app.cli.options import loading_options, model_options, typed_settings
from hearth.app.settings import Layer, Setting

LOADING = [
    *("--ctx", "--max-sessions", "--max-batch-tokens", "--max-waiting", "--target-itl-ms"),
    *("--kv-budget", "--kv-type", "--kv-pool", "--memory-fraction", "--gpu-layers", "--threads"),
]


def typed(
    options: Callable[..., Any], *args: str, expected_code: int = 0
) -> tuple[Layer | None, str]:
    """What `typed_settings` makes of `args`, and what was printed."""
    seen: list[Layer] = []

    @click.command()
    @options
    @click.pass_context
    def command(ctx: click.Context, /, **_: Any) -> None:
        seen.append(typed_settings(ctx))

    result = CliRunner().invoke(command, args)
    assert result.exit_code == expected_code, result.output
    return (seen[0] if seen else None), result.output


@pytest.mark.parametrize("options", [model_options, loading_options])
def test_every_option_of_loading_is_there_and_says_its_default(options: Any) -> None:
    _, help_text = typed(options, "--help")
    words = " ".join(help_text.split())
    for flag in LOADING:
        assert flag in words
    assert "--gpu-layers auto|N" in words
    assert "--kv-pool grow|static" in words
    assert "--kv-budget auto|SIZE" in words
    assert "Sequences that run at the same time. Default: 8." in words


def test_what_is_typed_of_loading_is_a_layer_of_settings() -> None:
    layer, _ = typed(
        loading_options,
        *("--ctx", "4,096", "--max-sessions", "16", "--max-batch-tokens", "256"),
        *("--max-waiting", "0", "--kv-budget", "1.5G", "--kv-type", "q8_0", "--threads", "auto"),
        *("--gpu-layers", "12", "--memory-fraction", "0.5", "--kv-pool", "static"),
        *("--target-itl-ms", "25"),
    )
    assert layer == {
        "context": Setting(4096, "--ctx"),
        "max_sessions": Setting(16, "--max-sessions"),
        "max_batch_tokens": Setting(256, "--max-batch-tokens"),
        "max_waiting": Setting(0, "--max-waiting"),
        "kv_budget": Setting(3 * 2**29, "--kv-budget"),
        "kv_type": Setting("q8_0", "--kv-type"),
        "threads": Setting(None, "--threads"),
        "gpu_layers": Setting(12, "--gpu-layers"),
        "memory_fraction": Setting(0.5, "--memory-fraction"),
        "kv_pool": Setting("static", "--kv-pool"),
        "target_itl_ms": Setting(25.0, "--target-itl-ms"),
    }


def test_commands_that_only_load_have_no_options_of_sampling() -> None:
    assert typed(model_options, "--top-k", "5")[0] == {"top_k": Setting(5, "--top-k")}
    _, said = typed(loading_options, "--top-k", "5", expected_code=2)
    assert "--top-k" in said


def test_flash_attention_is_switched_on_and_off() -> None:
    for flag, value in (("--flash-attention", True), ("--no-flash-attention", False)):
        layer, _ = typed(loading_options, flag)
        assert layer == {"flash_attention": Setting(value, "--flash-attention")}
