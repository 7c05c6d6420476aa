"""What can go wrong with the history of chats."""

from __future__ import annotations

from hearth.quant.errors import HearthError


class ChatsError(HearthError):
    """Base of what can go wrong with the history of chats."""

    code = "chats_error"


class ChatNotFound(ChatsError):
    """No such chat, or no such message in it: it may have been deleted meanwhile."""

    code = "chat_not_found"
    http_status = 404


class MessageInUse(ChatsError):
    """What was asked does not suit the message's state: it is being written, or it has ended, or
    others build on it.
    """

    code = "message_in_use"
    http_status = 409


class NotAnswered(ChatsError):
    """A message was added to a chat, but its answer cannot begin; the message says why."""

    code = "not_answered"


class InvalidChat(ChatsError):
    """Something that is to be kept or imported is not what it must be; `field` in `data` names it,
    such as "messages[3].parent".
    """

    code = "invalid_chat"
    exit_code = 2
    http_status = 400

    def __init__(self, field: str, message: str, hint: str = "", **data: object) -> None:
        super().__init__(f"{field}: {message}", hint, **{**data, "field": field})
        self.field = field


class ChatsLocked(ChatsError):
    """Another process holds the file for longer than we wait."""

    code = "chats_locked"
    http_status = 503


class ChatsDiskFull(ChatsError):
    """There is no room for what was to be written; nothing of it was, and nothing else is lost."""

    code = "chats_disk_full"
    http_status = 507


class ChatsUnwritable(ChatsError):
    """The file cannot be opened, read or written: rights, or a device that fails."""

    code = "chats_unwritable"


class ChatsCorrupt(ChatsError):
    """The file is damaged, or is no database."""

    code = "chats_corrupt"


class ChatsForeign(ChatsError):
    """The file is a database of another program, or of a newer Hearth; it was left as it is."""

    code = "chats_foreign"
