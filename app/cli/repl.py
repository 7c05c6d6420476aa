"""The loop of the line-mode chat."""

from __future__ import annotations

import re
from dataclasses import replace

from hearth.app.cli.asking import Answer, ask
from hearth.app.cli.lines import LineReader
from hearth.app.cli.run import announce, build_request, narrate_end, require_template
from hearth.app.cli.state import State
from hearth.app.conversation import Conversation
from hearth.app.exit_codes import ExitCode
from hearth.app.host_link import HostLink
from hearth.app.settings import Layer
from hearth.backends.contract import Request
from hearth.backends.errors import HearthError, PromptTooLong, from_info

_COMMAND = re.compile(r"/([a-z?]+)(?:\s+(.*))?$", re.DOTALL)
_QUOTE_LENGTH = 40


class Repl:
    """A chat with one model at a time.

    Args:
        state: settings, library and output.
        link: to the host.
        reader: where messages come from.
        model: name or path; the default model if empty.
        flags: what was typed on the command line.
        stats: print numbers after each answer.

    Raises:
        HearthError: the first model cannot be found, loaded or chatted with.
    """

    def __init__(
        self,
        state: State,
        link: HostLink,
        reader: LineReader,
        model: str,
        flags: Layer,
        *,
        stats: bool,
    ) -> None:
        self.state = state
        self.output = state.output
        self.flags = dict(flags)
        self.stats = stats
        self._link = link
        self._reader = reader
        self.load(model)
        self.conversation = Conversation(self.chosen.use.system)

    def load(self, model: str) -> None:
        """Change to the model called `model`. Raises HearthError, with nothing changed."""
        chosen = self.state.choose(model, self.flags)
        linked = self._link.model(chosen.spec)
        with self.output.note_if_slow(f"loading {chosen.found.name} …"):
            info = linked.info()
        require_template(info)
        self.chosen, self._linked, self.info = chosen, linked, info
        announce(self.state, info, stats=self.stats)

    def change_model(self, model: str) -> None:
        """Go on with the model called `model`, and with its own system prompt unless the user has
        set another. Raises HearthError, with nothing changed.
        """
        before = self.chosen.use.system
        self.load(model)
        if self.conversation.system == before:
            self.conversation.system = self.chosen.use.system

    def settle(self) -> None:
        """Let changed flags hold from now on."""
        self.chosen = replace(
            self.chosen,
            use=self.state.settings.with_flags(self.flags).for_model(self.chosen.found.name),
        )

    def run(self) -> int:
        """Read and answer until the user leaves.

        Returns the exit code: that of the last failure if the questions were piped in.
        """
        from hearth.app.cli.slash import Leave, run_command

        if self._reader.interactive:
            self.output.note("/help shows the commands. Ctrl+C stops an answer, Ctrl+D leaves.")
        code: int = ExitCode.OK
        while True:
            try:
                text = self._reader.read()
                if text is None:
                    break
                command = _COMMAND.match(text.strip())
                if command is not None:
                    run_command(self, command[1], (command[2] or "").strip())
                elif text.strip():
                    self.turn(text)
            except Leave:
                break
            except KeyboardInterrupt:
                self.output.note("\nCtrl+D or /quit leaves.")
            except HearthError as error:
                self.output.error(error)
                code = error.exit_code
        if self._reader.interactive:
            self.output.note("")
            return ExitCode.OK
        return code

    def turn(self, text: str) -> None:
        """Ask, show the answer, remember both. Raises HearthError if the answer is not whole."""
        self.conversation.ask(text)
        while True:
            request = replace(
                build_request(self.chosen, "", raw=True),
                text=None,
                messages=self.conversation.messages(),
            )
            answer = self._answer(request)
            error = from_info(answer.error) if answer.error is not None else None
            if not isinstance(error, PromptTooLong) or answer.text or not self._make_room(error):
                break
        if answer.text or answer.reason not in ("cancelled", "error"):
            self.conversation.answer(answer.text, answer.reasoning)
        else:
            self.conversation.take_back()
        narrate_end(self.state, answer, self.info, request, stats=self.stats and error is None)
        if error is not None:
            raise error

    def _answer(self, request: Request) -> Answer:
        writer, thoughts = self.output.stream(), self.output.thoughts()

        def show(piece: str) -> None:
            thoughts.end()
            writer.write(piece)

        try:
            return ask(self._linked, request, show, thoughts.write)
        finally:
            thoughts.end()
            writer.end()

    def _make_room(self, error: PromptTooLong) -> bool:
        """Forget the oldest turn and say so; False if there is none to forget."""
        oldest = self.conversation.forget_oldest()
        if oldest is None:
            return False
        words = " ".join(oldest.content.split())
        quote = words if len(words) <= _QUOTE_LENGTH else words[: _QUOTE_LENGTH - 1] + "…"
        self.output.note(
            f'{error.message} The oldest turn is left out from now on: "{quote}" and its answer. '
            "/new starts afresh."
        )
        return True
