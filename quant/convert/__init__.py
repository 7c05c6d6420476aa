"""Folders of safetensors, read as if they were GGUF files.

`config.json`, `tokenizer.json` and the other files are translated to GGUF metadata, and the rows of
each tensor are located. Planning is pure Python; torch is imported when rows are read. No class of
transformers, no code that came with a model, and no part of the runners is used.
"""
