"""What a model writes, taken apart as it comes: reasoning, answer, tool calls.

One module a family of templates; `families` chooses. Nothing here imports a runner or the engine.
"""
