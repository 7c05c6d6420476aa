"""The one decoder that every family configures. Nothing here reads a file or knows a family."""
