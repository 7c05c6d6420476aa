"""Model families: the structure of each, and the names of its weights in safetensors and in GGUF.
One short module per family, with data and formulas.
"""
