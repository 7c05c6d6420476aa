"""From a request to the prompt that the model gets: ids as they are, text as it is, messages by a
chat template.
"""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.contract.requests import Request
from hearth.backends.errors import NoChatTemplate
from hearth.backends.text.chat_templates import ChatTemplates, template_for
from hearth.backends.text.infill import infill_ids
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.worker.chat_prompts import ChatPrompts, shown_tools
from hearth.backends.worker.prepared_prompt import PreparedPrompt


class Prompts:
    """Makes the prompts of one loaded model. Thread-safe.

    Args:
        templates: the model's chat templates; empty if it does not chat.
        renderer: renders them in a killable process.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, templates: ChatTemplates, renderer: Renderer
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._templates = templates
        self._chats = {
            source: ChatPrompts(name, tokenizer, source, renderer) for source in templates.values()
        }

    def prepare(
        self, request: Request, check: Callable[[str], None] | None = None
    ) -> PreparedPrompt:
        """The prompt of `request`, which has passed `validate`.

        Args:
            check: called with the text of the prompt before that is tokenized; may refuse it.

        Raises:
            NoChatTemplate, TemplateError: messages cannot be rendered.
            UnsupportedParameter: `suffix`, `continue_last` or one of `template_values` cannot be
                honoured by this model.
        """
        if request.token_ids is not None:
            return PreparedPrompt(list(request.token_ids), None)
        if request.text is not None:
            if request.suffix is not None:
                if check is not None:
                    check(request.text)
                    check(request.suffix)
                ids = infill_ids(request.text, request.suffix, self._tokenizer)
                return PreparedPrompt(ids, None)
            if check is not None:
                check(request.text)
            ids = self._tokenizer.encode(request.text, special=False, add_bos=True)
            return PreparedPrompt(ids, request.text)
        template = template_for(self._templates, tools=bool(shown_tools(request)))
        if template is None:
            raise NoChatTemplate(
                f"{self._name} has no chat template: it completes text and does not chat.",
                "Complete text with `hearth run MODEL --raw`, or set chat_template for this model"
                " in the settings.",
            )
        return self._chats[template].prepare(request, check)
