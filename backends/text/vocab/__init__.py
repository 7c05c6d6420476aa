"""Tokenizers that need no runner: from a folder's `tokenizer.json`, or from a GGUF file's metadata.

`open_folder` and `open_gguf` in `load.py` create them. `tokenizers` is imported only here, and
nothing here imports torch or llama_cpp.
"""
