"""What a model writes, parsed while it streams: reasoning, answer, tool calls.

One module a family of templates; `families` chooses. Nothing here imports a runner or the engine.
"""
