"""From a `Request` to a `Sequence`: render, tokenize, check against the context. Runs beside the
step loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from hearth.backends.contract import Event, Message, Request
from hearth.backends.engine.dry import breaker_ids
from hearth.backends.engine.runner import RunnerInfo
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.sequence import Clock, Limits, Sequence
from hearth.backends.engine.validate import validate
from hearth.backends.errors import NoChatTemplate, PromptTooLong
from hearth.backends.text.probe import TemplateTraits, adapt, probe
from hearth.backends.text.prompt import encode_rendered, protect, unprotect
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.tokenizer import Tokenizer


class Preparer:
    """Makes sequences for one loaded model. Thread-safe.

    Args:
        template: Jinja source of the chat template, None if the model has none.
        renderer: renders it in a killable process.
    """

    def __init__(
        self,
        name: str,
        info: RunnerInfo,
        tokenizer: Tokenizer,
        template: str | None,
        renderer: Renderer,
    ) -> None:
        self._name = name
        self._info = info
        self._tokenizer = tokenizer
        self._template = template
        self._renderer = renderer
        self._traits: TemplateTraits | None = None
        self._probing = threading.Lock()
        self._breakers: tuple[tuple[str, ...], frozenset[int]] = ((), frozenset())

    def sequence(
        self, ident: int, request: Request, emit: Callable[[Event], None], clock: Clock
    ) -> Sequence:
        """The sequence that answers `request`.

        Raises:
            InvalidParameter: a field of the request is out of range; `param` names it.
            NoChatTemplate, TemplateError: messages cannot be rendered.
            PromptTooLong: with both numbers.
        """
        validate(request, self._info.vocab_size)
        prompt, notices = self._prompt(request)
        limits = self._limits(request, len(prompt))
        sampling = request.sampling
        breakers: frozenset[int] = frozenset()
        if sampling.dry_multiplier:
            breakers = self._breaker_ids(sampling.dry_sequence_breakers)
        return Sequence(
            ident,
            prompt,
            Sampler(sampling, prompt_ids=prompt, breakers=breakers),
            limits,
            request.stop,
            self._tokenizer.piece,
            emit,
            priority=request.priority,
            notices=notices,
            clock=clock,
        )

    def render(self, messages: Iterable[Message]) -> str:
        """The prompt that the chat template makes of `messages`, as the model gets it."""
        rendered, _ = self._rendered(messages)
        return unprotect(rendered)

    def _prompt(self, request: Request) -> tuple[list[int], tuple[str, ...]]:
        if request.token_ids is not None:
            return list(request.token_ids), ()
        if request.text is not None:
            return self._tokenizer.encode(request.text, special=False, add_bos=True), ()
        rendered, notices = self._rendered(request.messages or ())
        return encode_rendered(rendered, self._tokenizer), notices

    def _rendered(self, messages: Iterable[Message]) -> tuple[str, tuple[str, ...]]:
        if self._template is None:
            raise NoChatTemplate(
                f"{self._name} has no chat template: it completes text and does not chat.",
                "Complete text with `hearth run MODEL --raw`, or set chat_template for this model"
                " in the settings.",
            )
        messages, notices = adapt(tuple(messages), self._template_traits())
        guarded = protect(messages, self._tokenizer.control_texts)
        return self._render_once(guarded), tuple(notices)

    def _template_traits(self) -> TemplateTraits:
        with self._probing:
            if self._traits is None:
                self._traits = probe(self._render_once)
            return self._traits

    def _render_once(self, messages: Seq[Message]) -> str:
        assert self._template is not None
        return self._renderer.render(
            self._template,
            messages,
            bos_token=self._tokenizer.bos_text,
            eos_token=self._tokenizer.eos_text,
        )

    def _limits(self, request: Request, prompt_tokens: int) -> Limits:
        context = self._info.context
        room = context - prompt_tokens
        if prompt_tokens == 0:
            raise PromptTooLong("The prompt has no tokens.", "Say something.", prompt_tokens=0)
        if room < 1:
            raise PromptTooLong(
                f"The prompt has {prompt_tokens:,} tokens; the context of {self._name} holds"
                f" {context:,}, with room for at least one answer token.",
                prompt_tokens=prompt_tokens,
                context=context,
            )
        if request.max_tokens is not None and request.max_tokens > room:
            raise PromptTooLong(
                f"The prompt has {prompt_tokens:,} tokens and {request.max_tokens:,} new ones are"
                f" asked for; the context of {self._name} holds {context:,}.",
                prompt_tokens=prompt_tokens,
                max_tokens=request.max_tokens,
                context=context,
            )
        if request.min_tokens > room:
            raise PromptTooLong(
                f"The prompt has {prompt_tokens:,} tokens and at least {request.min_tokens:,} new"
                f" ones are asked for; the context of {self._name} holds {context:,}.",
                prompt_tokens=prompt_tokens,
                min_tokens=request.min_tokens,
                context=context,
            )
        return Limits(
            max_tokens=room if request.max_tokens is None else request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            end_ids=self._info.end_ids,
        )

    def _breaker_ids(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Reads the whole vocabulary, so the last set is kept: nearly everybody uses the default
        one.
        """
        texts_kept, ids = self._breakers
        if texts_kept != texts:
            ids = breaker_ids(self._tokenizer, texts)
            self._breakers = (texts, ids)
        return ids
