"""A chat as the front ends hold it: a system prompt and the messages since."""

from __future__ import annotations

from hearth.backends.contract import Message


class Conversation:
    """The turns of one chat.

    Args:
        system: the system prompt; none if empty.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Message] = []

    @property
    def turns(self) -> tuple[Message, ...]:
        """User and assistant messages, oldest first."""
        return tuple(self._turns)

    def messages(self) -> tuple[Message, ...]:
        """What goes to the model: system prompt and turns."""
        head = (Message("system", self.system),) if self.system else ()
        return (*head, *self._turns)

    def ask(self, text: str) -> None:
        """Add what the user says."""
        self._turns.append(Message("user", text))

    def answer(self, text: str, reasoning: str = "") -> None:
        """Add what the model said, and thought before."""
        self._turns.append(Message("assistant", text, reasoning))

    def take_back(self) -> None:
        """Remove the last question, which got no answer."""
        if self._turns and self._turns[-1].role == "user":
            self._turns.pop()

    def forget_oldest(self) -> Message | None:
        """Remove the oldest question with its answers and return it; None if it is the last."""
        later = next(
            (i for i, turn in enumerate(self._turns) if i > 0 and turn.role == "user"), None
        )
        if later is None:
            return None
        oldest = self._turns[0]
        del self._turns[:later]
        return oldest

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._turns.clear()
