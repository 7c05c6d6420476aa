"""Parses model output while it streams: reasoning, answer, tool calls.

There is one module per family of templates; `families` chooses. Nothing here imports a runner or
the engine.
"""
