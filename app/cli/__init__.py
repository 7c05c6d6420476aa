"""The `hearth` command: `main`, and one module per command.

Data goes to stdout, narration to stderr. The module of a command is imported when the command runs;
no module here imports torch, llama_cpp, numpy or textual.
"""
