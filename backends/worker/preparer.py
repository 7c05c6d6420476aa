"""Turns a call into work for the engine: renders, tokenizes and checks it against the context. Runs
in threads outside the step loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from hearth.backends.contract.events import Prompt
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.requests import BeamSearch, Request, Tool
from hearth.backends.contract.sampling import Speculate, SpeculateRule
from hearth.backends.contract.wire import NUMBER_BYTES, Embed, Rank, Score, check_answer_fits
from hearth.backends.engine.beams import Beam, Search
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.dry import breaker_ids
from hearth.backends.engine.embedding import Emit as EmitAnswer
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.grammars import Grammars
from hearth.backends.engine.matcher import Matcher
from hearth.backends.engine.random_stream import choice_seed, fresh_seed
from hearth.backends.engine.restoring import Restoring
from hearth.backends.engine.runner import RunnerInfo
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.scoring import Answer as ScoringAnswer
from hearth.backends.engine.scoring import Scoring
from hearth.backends.engine.sequence import Clock, Emit
from hearth.backends.engine.streaming import Streaming
from hearth.backends.engine.validate import (
    validate,
    validate_embed,
    validate_rank,
    validate_score,
)
from hearth.backends.errors import (
    ConflictingParameters,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
    prompt_too_long,
)
from hearth.backends.text.chat_templates import ChatTemplates
from hearth.backends.text.least_tokens import least_tokens
from hearth.backends.text.output.parser import OutputParser
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.worker.prompts import PreparedPrompt, Prompts, shown_tools

_SEARCHED: Final = (
    "Beam search ranks answers by their log probability: temperature, top_p and the other "
    "parameters of sampling have no effect."
)
_DRAFTERS: Final = {"draft": "a draft model", "medusa": "Medusa heads"}
_TEXT_BYTES: Final = 16
"""Estimated bytes of a token's text in an answer, more than the mean of any vocabulary."""
_NAMES_BYTES: Final = 32
"""Bytes of the field names of one `TokenLogprob` and of the encoding around its values."""


class Preparer:
    """Prepares the work for one loaded model's engine. Thread-safe.

    Args:
        templates: the model's chat templates; empty if it has none.
        renderer: renders templates in a process that can be killed.
        grammars: compiles the grammars that answers must follow.
        drafters: the loaded drafters apart from n-grams, by their names in `Speculate`.
    """

    def __init__(
        self,
        name: str,
        info: RunnerInfo,
        tokenizer: Tokenizer,
        templates: ChatTemplates,
        renderer: Renderer,
        grammars: Grammars,
        settings: ModelSettings | None = None,
        drafters: Collection[str] = (),
    ) -> None:
        self._name = name
        self._drafters = drafters
        self._info = info
        self._tokenizer = tokenizer
        self._prompts = Prompts(name, tokenizer, templates, renderer)
        self._grammars = grammars
        self._settings = settings or ModelSettings()
        self._breakers: tuple[tuple[str, ...], frozenset[int]] = ((), frozenset())

    def generations(
        self, ident: int, request: Request, emit: Emit, clock: Clock
    ) -> Sequence[Generation | Beam]:
        """The `request.n` generations that answer `request`, or the beams of a beam search. The
        prompt is rendered and tokenized once. Generations run one after the other if memory is
        short, so only each by itself must fit.

        Args:
            emit: gets the single stream of events of all generations.

        Raises:
            InvalidParameter: a field of the request is out of range; `param` is its name.
            UnsupportedParameter: a field cannot be honoured by this model, or the model cannot
                generate.
            NoChatTemplate, TemplateError: messages cannot be rendered.
            PromptTooLong: with both numbers.
        """
        self._check_generates()
        rule = validate(request, self._info.vocab_size)
        streaming = self._streaming(request)
        is_bounded = request.truncate_prompt_tokens is None and streaming is None
        prompt = self._prompt(request, is_bounded=is_bounded)
        limits = self._limits(request, prompt)
        notices = prompt.notices
        if request.max_tokens is not None and request.max_tokens > limits.max_tokens:
            notices = (
                *notices,
                f"max_tokens is {request.max_tokens}, and the context has {limits.max_tokens}"
                f" tokens left after the prompt, so the answer has at most {limits.max_tokens}.",
            )
        if request.beams is not None:
            self._check_beams(request.beams)
            notices = (*notices, _SEARCHED)
        mode, keeping = self._speculate(request)
        lark = self._grammar(request, prompt, rule)
        sampling = request.sampling
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        breakers: frozenset[int] = frozenset()
        if sampling.dry_multiplier:
            breakers = self._breaker_ids(sampling.dry_sequence_breakers)
        emits = [emit]
        if request.n > 1:
            group = ChoiceGroup(emit, request.n)
            emits = [group.emitter(index) for index in range(request.n)]
        generations = [
            Generation(
                ident,
                prompt.ids,
                Sampler(
                    replace(sampling, seed=choice_seed(seed, index)),
                    prompt_ids=prompt.ids,
                    breakers=breakers,
                ),
                limits,
                request.stop,
                self._tokenizer.piece,
                emit_choice,
                matcher=self._matcher(request, lark),
                parser=self._parser(request, prompt),
                index=index,
                priority=request.priority,
                session=request.session,
                notices=notices,
                kept_tokens=max((tokens for tokens, _ in prompt.pins), default=0),
                pins=prompt.pins,
                reuse_prefix=request.reuse_prefix,
                clock=replace(clock),
                speculating=None
                if mode == "off"
                else Speculating(
                    mode, self._settings.draft_tokens, keeping, shares=request.reuse_prefix
                ),
                streaming=streaming,
            )
            for index, emit_choice in enumerate(emits)
        ]
        return generations if request.beams is None else Search(request.beams, generations).beams

    def _streaming(self, request: Request) -> Streaming | None:
        """How the answer continues after the context is full; None: it ends."""
        if request.attention_sinks is None:
            return None
        if self._info.no_streaming:
            raise UnsupportedParameter(
                "attention_sinks",
                f"{self._name} cannot forget tokens out of the middle of a text:"
                f" {self._info.no_streaming}.",
                "Leave attention_sinks out. Chats drop their oldest turns (context_overflow).",
            )
        return Streaming.of(request.attention_sinks, self._info.context, self._info.page)

    def _check_beams(self, beams: BeamSearch) -> None:
        if not self._info.keeps_past:
            raise UnsupportedParameter(
                "use_beam_search",
                f"The memory of {self._name} has no prefixes that beams could share.",
                "Leave out use_beam_search, or use a model whose layers all see the whole context.",
            )
        if beams.width > self._info.max_sequences:
            raise InvalidParameter(
                "beam_width",
                f"beam_width is {beams.width}; {self._info.max_sequences} sequences run at the "
                "same time.",
                "Lower beam_width, or load the model with more max_sessions (--max-sessions).",
            )

    def scoring(
        self, ident: int, call: Score, emit: ScoringAnswer, clock: Clock, session: str = ""
    ) -> Scoring:
        """The work that answers `call`.

        Raises:
            InvalidParameter: there are fewer than two tokens, or one is not in the vocabulary.
            PromptTooLong: with both numbers.
            UnsupportedParameter: this model cannot generate.
        """
        self._check_generates()
        validate_score(call.ids, session, self._info.vocab_size, call.top)
        self._check_holds("token_ids", len(call.ids), self._info.context)
        check_answer_fits("token_ids", len(call.ids), _score_bytes(call.top))
        return Scoring(
            ident,
            list(call.ids),
            emit,
            top=call.top,
            piece=self._tokenizer.piece,
            session=session,
            clock=clock,
        )

    def restoring(self, ident: int, request: Request, emit: EmitAnswer, clock: Clock) -> Restoring:
        """The work that reads the prompt of `request` from disk back into the KV cache.

        Raises:
            InvalidParameter, UnsupportedParameter, NoChatTemplate, TemplateError, PromptTooLong: as
                `generations`.
        """
        self._check_generates()
        validate(request, self._info.vocab_size)
        prompt = self._prompt(request, is_bounded=request.truncate_prompt_tokens is None)
        self._check_holds(request.prompt_field, len(prompt.ids), self._info.context)
        return Restoring(
            ident,
            prompt.ids,
            emit,
            priority=request.priority,
            session=request.session,
            clock=clock,
        )

    def embedding(self, ident: int, call: Embed, emit: EmitAnswer, session: str = "") -> TextJob:
        """The work that answers `call`. The tokens that the model was trained with are added before
        and after every text; token ids are used unchanged. With `call.truncate`, the end of a text
        that is too long is cut off, but the tokens added after it are kept.

        Raises:
            InvalidParameter: there are no texts or too many, or one is empty.
            LimitExceeded: their vectors would not fit into one answer.
            PromptTooLong: with both numbers.
            UnsupportedParameter: this model makes no vectors.
        """
        if not self._info.embedding_width:
            raise UnsupportedParameter(
                "model",
                f"{self._name} does not make vectors.",
                "Use an embedding model, or one whose vectors this backend can read.",
            )
        validate_embed(call.texts, session, self._info.vocab_size)
        width = self._info.embedding_width
        check_answer_fits("texts", len(call.texts), NUMBER_BYTES * (width + 1))
        texts = []
        for index, text in enumerate(call.texts):
            if not call.truncate and isinstance(text, str):
                self._check_beginning(f"texts[{index}]", self._most_text_tokens, text)
            ids = self._text_ids(text, self._most_text_tokens if call.truncate else None)
            if not ids:
                raise InvalidParameter(
                    f"texts[{index}]", f"texts[{index}] has no tokens.", "Send some text."
                )
            self._check_holds(f"texts[{index}]", len(ids), self._most_text_tokens)
            texts.append(ids)
        return TextJob(ident, texts, call.pooling, emit, session=session)

    def _text_ids(self, text: str | Sequence[int], most: int | None) -> list[int]:
        """The tokens of one text; at most `most` of them, if `most` is given."""
        if not isinstance(text, str):
            return list(text[:most])
        if most is not None:
            text = self._beginning(text, most)
        ids = self._tokenizer.encode(text, special=False, add_bos=True, add_eos=True)
        if most is None or len(ids) <= most:
            return ids
        without_end = self._tokenizer.encode(text, special=False, add_bos=True)
        end = ids[len(without_end) :]
        return [*without_end[: most - len(end)], *end]

    def _beginning(self, text: str, most: int) -> str:
        """A beginning of `text` that certainly includes its first `most` tokens.

        It has at least twice as many tokens, because the tokens at the cut may differ from those of
        the whole text. Tokenizing all of a long text that is cut anyway may take seconds.
        """
        size = most * _TEXT_BYTES
        while size < len(text):
            if len(self._tokenizer.encode(text[:size], special=False, add_bos=False)) >= 2 * most:
                return text[:size]
            size *= 2
        return text

    def ranking(self, ident: int, call: Rank, emit: EmitAnswer, session: str = "") -> TextJob:
        """The work that answers `call`.

        Raises:
            InvalidParameter: there are no texts or too many, or one is empty.
            PromptTooLong: with both numbers.
            UnsupportedParameter: this model was not trained to rank.
        """
        if not self._info.can_rank:
            raise UnsupportedParameter(
                "model",
                f"{self._name} was not trained to rank texts.",
                "Use a reranker, or compare vectors of an embedding model.",
            )
        validate_rank(call.query, call.texts, session)
        pairs = []
        for index, text in enumerate(call.texts):
            self._check_beginning(f"texts[{index}]", self._most_text_tokens, text)
            ids = self._tokenizer.encode_pair(call.query, text)
            self._check_holds(f"texts[{index}]", len(ids), self._most_text_tokens)
            pairs.append(ids)
        return TextJob(ident, pairs, None, emit, session=session)

    def render(self, request: Request) -> Prompt:
        """The prompt that the model would get for `request`.

        Raises:
            InvalidParameter, NoChatTemplate, TemplateError, UnsupportedParameter: as `generations`.
        """
        validate(request, self._info.vocab_size)
        prompt = self._prompt(request)
        text = prompt.text if prompt.text is not None else self._tokenizer.decode(prompt.ids)
        return Prompt(text, tuple(prompt.ids), prompt.notices)

    def _prompt(self, request: Request, *, is_bounded: bool = False) -> PreparedPrompt:
        """The prompt, truncated as the request asks.

        Args:
            is_bounded: the whole prompt must fit into the context.
        """
        context = self._info.context
        check = None
        if is_bounded:
            check = partial(self._check_beginning, request.prompt_field, context)
        prompt = self._prompts.prepare(request, check)
        most = request.truncate_prompt_tokens
        if most == -1:
            most = context - min(request.max_tokens or 1, context // 2)
        return prompt if most is None else prompt.last(most)

    def _parser(self, request: Request, prompt: PreparedPrompt) -> OutputParser | None:
        """The parser of the output; None: all of the output is the answer."""
        if prompt.format is None:
            return None
        is_required = request.tool_choice == "required"
        tools = _callable_tools(request)
        return prompt.format.parser(tools, prompt.before_answer, required=is_required)

    def _grammar(self, request: Request, prompt: PreparedPrompt, rule: str | None) -> str | None:
        """The grammar of the answer, whose content must follow `rule`; None: no constraint."""
        if prompt.format is None:
            return None if rule is None else f"start: {rule}"
        return prompt.format.grammar(
            prompt.before_answer,
            content=rule,
            tools=_callable_tools(request),
            required=request.tool_choice == "required",
            parallel=not request.one_call,
        )

    def _matcher(self, request: Request, lark: str | None) -> Matcher | None:
        if lark is None:
            return None
        return self._grammars.matcher(lark, "tools" if request.constraint is None else "constraint")

    def _shown_ids(self, prompt: PreparedPrompt) -> frozenset[int]:
        """Special tokens that are part of the model's output format."""
        if prompt.format is None:
            return frozenset()
        known = self._tokenizer.control_tokens
        return frozenset(known[marker] for marker in prompt.format.markers if marker in known)

    def _limits(self, request: Request, prompt: PreparedPrompt) -> Limits:
        prompt_tokens = len(prompt.ids)
        param = request.prompt_field
        context = self._info.context
        if prompt_tokens == 0:
            raise InvalidParameter(param, "The prompt has no tokens.", "Send some text.")
        if request.attention_sinks is not None:
            free = request.max_tokens or max(context, request.min_tokens)
        else:
            free = context - prompt_tokens
        if free < 1:
            raise prompt_too_long(
                param, prompt_tokens, context, answers=True, hint=self._too_long_hint
            )
        if request.min_tokens > free:
            raise PromptTooLong(
                "min_tokens",
                f"min_tokens is {request.min_tokens}, and the prompt has {prompt_tokens} tokens."
                f" This model's maximum context length is {context} tokens.",
                "Lower min_tokens or shorten the prompt.",
                prompt_tokens=prompt_tokens,
                context=context,
                min_tokens=request.min_tokens,
            )
        return Limits(
            max_tokens=free if request.max_tokens is None else min(request.max_tokens, free),
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            end_ids=self._info.end_ids,
            shown_ids=self._shown_ids(prompt),
            one_call=request.one_call,
            stop_ids=frozenset(request.stop_token_ids),
            include_stop=request.include_stop,
            show_special=not request.skip_special_tokens,
        )

    def _speculate(self, request: Request) -> tuple[Speculate, SpeculateRule]:
        """How tokens of the answer are drafted, and by which rule they are accepted.

        Raises:
            UnsupportedParameter: tokens cannot be drafted in the way that the request asks for.
            ConflictingParameters: rejection sampling with a seed.
        """
        mode = request.speculate or self._settings.speculate
        if request.speculate not in (None, "off", "auto") and not self._info.can_roll_back:
            raise UnsupportedParameter("speculate", no_rollback(self._name), "Leave it out.")
        lacking = _DRAFTERS.get(request.speculate or "")
        if lacking is not None and request.speculate not in self._drafters:
            raise UnsupportedParameter(
                "speculate",
                f"{self._name} was loaded without {lacking}.",
                "Use speculate ngram, or auto.",
            )
        if not self._info.can_roll_back:
            mode = "off"
        rule = request.speculate_rule or self._settings.speculate_rule
        seed = request.sampling.seed
        is_used = mode != "off" or request.speculate_rule is not None
        if rule == "rejection" and is_used and seed is not None:
            raise ConflictingParameters(
                "speculate_rule",
                f"speculate_rule is rejection, and seed is {seed}; with that rule text depends on"
                " what is guessed, so a seed does not repeat it.",
                "Leave out seed, or use speculate_rule match.",
            )
        return mode, rule

    def _check_generates(self) -> None:
        if self._info.generates:
            return
        raise UnsupportedParameter(
            "model",
            f"{self._name} is an encoder, which cannot generate text.",
            "Use it with /v1/rerank, or choose a model that generates."
            if self._info.can_rank
            else "Use it with /v1/embeddings or /api/embed, or choose a model that generates.",
        )

    @property
    def _most_text_tokens(self) -> int:
        """Most tokens of a text to embed or rank."""
        return self._info.max_text_tokens or self._info.context

    def _check_beginning(self, param: str, most: int, text: str) -> None:
        """Refuse a text whose beginning alone has more than `most` tokens, without tokenizing the
        rest.

        Raises:
            PromptTooLong: with a lower bound of the number of tokens.
        """
        tokens = least_tokens(text, self._tokenizer, most)
        if tokens > most:
            raise prompt_too_long(param, tokens, most, at_least=True, hint=self._too_long_hint)

    def _check_holds(self, param: str, tokens: int, most: int) -> None:
        if tokens > most:
            raise prompt_too_long(param, tokens, most, hint=self._too_long_hint)

    @property
    def _too_long_hint(self) -> str:
        """Hint for inputs that exceed the context.

        The context is never larger than the KV cache, so an input that passes the check can be
        computed to its end.
        """
        if not self._info.generates:
            return "Split the text."
        if self._info.context < self._info.pool_tokens:
            return ""
        return (
            "Shorten the input, or allow more memory for keys and values: a larger context"
            " (--ctx) or kv_budget (--kv-budget), or kv_type q8_0 (--kv-type)."
        )

    def _breaker_ids(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Ids of the tokens that break sequences for DRY. Finding them reads the whole vocabulary,
        so the last result is cached: nearly all requests use the default `texts`.
        """
        texts_kept, ids = self._breakers
        if texts_kept != texts:
            ids = breaker_ids(self._tokenizer, texts)
            self._breakers = (texts, ids)
        return ids


def no_rollback(name: str) -> str:
    """Why tokens of the model `name` cannot be drafted."""
    return (
        f"{name} keeps a state that cannot forget tokens (recurrent, or a sliding window in"
        " llama.cpp), so none can be guessed."
    )


def _score_bytes(top: int) -> int:
    """Estimated bytes of `Scores` for each token."""
    if not top:
        return NUMBER_BYTES
    return NUMBER_BYTES + _NAMES_BYTES + (1 + top) * (2 * NUMBER_BYTES + _TEXT_BYTES)


def _callable_tools(request: Request) -> tuple[Tool, ...]:
    """The tools that may be called: only the forced one, if there is one."""
    tools = shown_tools(request)
    if request.forced_tool:
        return tuple(tool for tool in tools if tool.name == request.forced_tool)
    return tools
