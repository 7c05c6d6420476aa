"""Folders of safetensors, read as if they were GGUF files.

What `config.json`, `tokenizer.json` and the rest say in GGUF's words, and where the rows of each
tensor lie. Planning is pure Python; torch is imported when rows are read. No class of transformers,
no code that came with a model, nothing of runners.
"""
