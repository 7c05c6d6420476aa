"""The terminal app: Textual screens and widgets over the sessions, the library and the host."""
