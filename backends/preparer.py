"""From a call to work for the engine: render, tokenize, check against the context. Runs beside the
step loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hearth.backends.contract import Message, Request
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.dry import breaker_ids
from hearth.backends.engine.embedding import Answer as EmbeddingAnswer
from hearth.backends.engine.embedding import Embedding
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.random_stream import choice_seed, fresh_seed
from hearth.backends.engine.runner import RunnerInfo
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.scoring import Answer as ScoringAnswer
from hearth.backends.engine.scoring import Scoring
from hearth.backends.engine.sequence import Clock, Emit
from hearth.backends.engine.validate import validate, validate_embed, validate_score
from hearth.backends.errors import (
    InvalidParameter,
    NoChatTemplate,
    PromptTooLong,
    UnsupportedParameter,
)
from hearth.backends.text.probe import TemplateTraits, adapt, probe
from hearth.backends.text.prompt import encode_rendered, protect, unprotect
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.wire import Embed, Score


class Preparer:
    """Makes the work of one loaded model's engine. Thread-safe.

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

    def generations(
        self, ident: int, request: Request, emit: Emit, clock: Clock
    ) -> list[Generation]:
        """The `request.n` generations that answer `request`; they take turns where memory is
        short, so each alone must fit. The prompt is rendered and tokenized once.

        Args:
            emit: gets the one stream of events of all.

        Raises:
            InvalidParameter: a field of the request is out of range; `param` names it.
            NoChatTemplate, TemplateError: messages cannot be rendered.
            PromptTooLong: with both numbers.
        """
        validate(request, self._info.vocab_size)
        prompt, notices = self._prompt(request)
        limits = self._limits(request, len(prompt))
        sampling = request.sampling
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        breakers: frozenset[int] = frozenset()
        if sampling.dry_multiplier:
            breakers = self._breaker_ids(sampling.dry_sequence_breakers)
        emits = [emit]
        if request.n > 1:
            group = ChoiceGroup(emit, request.n)
            emits = [group.emitter(index) for index in range(request.n)]
        return [
            Generation(
                ident,
                prompt,
                Sampler(
                    replace(sampling, seed=choice_seed(seed, index)),
                    prompt_ids=prompt,
                    breakers=breakers,
                ),
                limits,
                request.stop,
                self._tokenizer.piece,
                emit_choice,
                index=index,
                priority=request.priority,
                session=request.session,
                notices=notices,
                clock=replace(clock),
            )
            for index, emit_choice in enumerate(emits)
        ]

    def scoring(self, ident: int, call: Score, emit: ScoringAnswer, clock: Clock) -> Scoring:
        """The work that answers `call`.

        Raises:
            InvalidParameter: fewer than two tokens, or one that is not in the vocabulary.
            PromptTooLong: with both numbers.
        """
        validate_score(call.ids, call.session, self._info.vocab_size)
        self._check_holds("token_ids", len(call.ids))
        return Scoring(ident, list(call.ids), emit, session=call.session, clock=clock)

    def embedding(self, ident: int, call: Embed, emit: EmbeddingAnswer) -> Embedding:
        """The work that answers `call`; every text gets the tokens before and behind it that the
        model was trained with.

        Raises:
            InvalidParameter: there are no texts or too many, or one is empty.
            PromptTooLong: with both numbers.
            UnsupportedParameter: this model makes no vectors.
        """
        if not self._info.embedding_width:
            raise UnsupportedParameter(
                "model",
                f"{self._name} does not make vectors.",
                "Use an embedding model, or one whose vectors this backend can read.",
            )
        validate_embed(call.texts, call.pooling, call.session)
        texts = []
        for index, text in enumerate(call.texts):
            ids = self._tokenizer.encode(text, special=False, add_bos=True, add_eos=True)
            if not ids:
                raise InvalidParameter(
                    f"texts[{index}]", f"texts[{index}] has no tokens.", "Send some text."
                )
            self._check_holds(f"texts[{index}]", len(ids))
            texts.append(ids)
        return Embedding(ident, texts, call.pooling, emit, session=call.session)

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

    def _render_once(self, messages: Sequence[Message]) -> str:
        assert self._template is not None
        return self._renderer.render(
            self._template,
            messages,
            bos_token=self._tokenizer.bos_text,
            eos_token=self._tokenizer.eos_text,
        )

    def _limits(self, request: Request, prompt_tokens: int) -> Limits:
        if prompt_tokens == 0:
            raise PromptTooLong("The prompt has no tokens.", "Say something.", prompt_tokens=0)
        room = self._info.context - prompt_tokens
        if room < 1:
            raise self._too_long(
                f"The prompt has {prompt_tokens:,} tokens",
                ", with room for at least one answer token",
                prompt_tokens=prompt_tokens,
            )
        if request.max_tokens is not None and request.max_tokens > room:
            raise self._too_long(
                f"The prompt has {prompt_tokens:,} tokens and {request.max_tokens:,} new ones are"
                " asked for",
                prompt_tokens=prompt_tokens,
                max_tokens=request.max_tokens,
            )
        if request.min_tokens > room:
            raise self._too_long(
                f"The prompt has {prompt_tokens:,} tokens and at least {request.min_tokens:,} new"
                " ones are asked for",
                prompt_tokens=prompt_tokens,
                min_tokens=request.min_tokens,
            )
        return Limits(
            max_tokens=room if request.max_tokens is None else request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            end_ids=self._info.end_ids,
        )

    def _check_holds(self, param: str, tokens: int) -> None:
        if tokens > self._info.context:
            raise self._too_long(f"{param} has {tokens:,} tokens", prompt_tokens=tokens)

    def _too_long(self, found: str, left: str = "", **numbers: int) -> PromptTooLong:
        """The context is never above what the key-value memory can hold, so that what passes here
        can be computed to its end.
        """
        context = self._info.context
        hint = ""
        if context == self._info.pool_tokens:
            hint = (
                "Shorten the prompt, ask for fewer tokens, or allow more memory for keys and"
                " values: a larger --ctx or --kv-budget, or --kv-type q8_0."
            )
        return PromptTooLong(
            f"{found}; the context of {self._name} holds {context:,}{left}.",
            hint,
            context=context,
            **numbers,
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
