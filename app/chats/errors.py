"""Errors of the chat history."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class ChatsError(HearthError):
    """Base class of the errors of the chat history."""

    code = "chats_error"


class ChatNotFound(ChatsError):
    """The chat, or the message in it, does not exist; it may have been deleted meanwhile."""

    code = "chat_not_found"
    http_status = 404


class MessageInUse(ChatsError):
    """The message's state does not allow the operation: the message is being written, has ended, or
    has others that build on it.
    """

    code = "message_in_use"
    http_status = 409


class NotAnswered(ChatsError):
    """A message was added to a chat, but its answer cannot begin; the error message says why."""

    code = "not_answered"


class InvalidChat(ChatsError):
    """A value to be stored or imported is invalid; `field` in `data` names it, such as
    "messages[3].parent".
    """

    code = "invalid_chat"
    exit_code = 2
    http_status = 400

    def __init__(self, field: str, message: str, hint: str = "", **data: object) -> None:
        super().__init__(f"{field}: {message}", hint, **{**data, "field": field})
        self.field = field


class ChatsLocked(ChatsError):
    """Another process has held the file for longer than the busy timeout."""

    code = "chats_locked"
    http_status = 503


class ChatsDiskFull(ChatsError):
    """The disk has no room for the change; none of it was written, and nothing else is lost."""

    code = "chats_disk_full"
    http_status = 507


class ChatsUnwritable(ChatsError):
    """The file cannot be opened, read or written: permissions, or a failing device."""

    code = "chats_unwritable"


class ChatsCorrupt(ChatsError):
    """The file is damaged or is not a database."""

    code = "chats_corrupt"


class ChatsForeign(ChatsError):
    """The file is a database of another program or of a newer Hearth; it was left unchanged."""

    code = "chats_foreign"
