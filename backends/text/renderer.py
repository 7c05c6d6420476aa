"""Renders chat templates in a process that can be killed: bounded in time, memory and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hearth.backends.errors import InvalidParameter, TemplateError
from hearth.backends.machine.helper import Helper, HelperLost
from hearth.backends.text.chat_templates import HINT

_RESERVED: Final = frozenset(
    ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
)


class Renderer:
    """Renders chat templates one at a time in a helper process. Thread-safe."""

    def __init__(self) -> None:
        self._helper = Helper(
            "hearth.backends.text.render_helper", "The renderer of chat templates"
        )

    def start(self) -> None:
        """Start the helper in the background, so that the first render does not wait for it."""
        self._helper.start()

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = 1.0,
    ) -> str:
        """The prompt that the Jinja source `template` makes of `messages`.

        Args:
            messages: JSON objects with "role", "content" and whatever else the template reads.
            tools: functions that the model may call, as OpenAI describes them.
            extra: further variables (JSON values), e.g. {"enable_thinking": False}.
            timeout_s: wall-clock time that the template may take.

        Raises:
            TemplateError: the template is invalid, refuses, or exceeds a limit; `reason` in `data`
                is as in `template.render`, or "timeout", or "crashed".
            InvalidParameter: `extra` has a reserved name, or the conversation is over 64 MiB.
            InternalError: the helper cannot be started, or the renderer is closed.
        """
        reserved = _RESERVED.intersection(extra or ())
        if reserved:
            raise InvalidParameter(
                "extra",
                f"{', '.join(sorted(reserved))} cannot be given to a chat template as extra"
                " variables.",
                "Use other names.",
            )
        answer = self._answer(
            {
                "template": template,
                "messages": list(messages),
                "tools": None if tools is None else list(tools),
                "add_generation_prompt": add_generation_prompt,
                "bos_token": bos_token,
                "eos_token": eos_token,
                "extra": dict(extra or {}),
            },
            timeout_s,
        )
        return str(answer["text"])

    def variables(self, template: str, *, timeout_s: float = 1.0) -> frozenset[str]:
        """Names that the Jinja source `template` reads and does not set itself.

        Raises:
            TemplateError, InternalError: as `render`.
        """
        return frozenset(self._answer({"template": template}, timeout_s)["variables"])

    def close(self) -> None:
        """End the helper; a render in progress fails."""
        self._helper.close()

    def _answer(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The helper's answer to `question`; an error in it is raised as `TemplateError`."""
        try:
            answer = self._helper.ask(question, timeout_s)
        except ValueError as error:
            raise InvalidParameter(
                "messages",
                f"The conversation is too large for a template: {error}.",
                "Shorten it.",
            ) from error
        except HelperLost as lost:
            what, reason = "brought down the process that rendered it", "crashed"
            if lost.overdue:
                what, reason = f"took more than {timeout_s:g} s", "timeout"
            raise TemplateError(f"The chat template {what}.", HINT, reason=reason) from lost
        if "error" in answer:
            raise TemplateError(answer["error"], answer["hint"], **answer["data"])
        return answer
