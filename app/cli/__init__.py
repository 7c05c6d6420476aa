"""The `hearth` command: `main` and one module a command.

stdout is data, stderr is narration. A command's module is imported when the command runs; no module
here imports torch, llama_cpp, numpy or textual.
"""
