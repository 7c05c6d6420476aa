"""What a runner package returns for a model that it has opened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.engine.runner import Runner
from hearth.backends.text.chat_templates import ChatTemplates, template_for
from hearth.backends.text.output.families import capabilities_of
from hearth.backends.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run. `runner.close()` frees all of it, the tokenizer included."""

    runner: Runner
    tokenizer: Tokenizer
    info: ModelInfo
    templates: ChatTemplates
    """The template from the settings if given, else the model's own; empty if it cannot chat."""


def described(
    info: ModelInfo, runner: Runner, tokenizer: Tokenizer, templates: ChatTemplates
) -> ModelInfo:
    """`info` completed with facts from the runner, the tokenizer and the templates of the model."""
    template = template_for(templates, tools=False)
    facts = runner.info
    return replace(
        info,
        context=facts.context,
        vocab_size=facts.vocab_size,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        max_sessions=facts.max_sequences,
        max_batch_tokens=facts.max_batch_tokens,
        has_chat_template=template is not None,
        template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "",
        capabilities=capabilities_of(
            templates,
            tokenizer,
            generates=facts.generates,
            embeds=facts.embedding_width > 0,
            ranks=facts.can_rank,
        ),
    )
