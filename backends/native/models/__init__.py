"""The decoder that every family configures. Nothing here reads files or knows about families."""
