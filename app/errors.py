"""What can go wrong with the folders that Hearth keeps its things in."""

from __future__ import annotations

from hearth.backends.errors import HearthError


class FolderUnusable(HearthError):
    """One of Hearth's own folders is none, cannot be made, or cannot be written to."""

    code = "folder_unusable"
