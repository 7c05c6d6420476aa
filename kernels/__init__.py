"""Hot operations."""
