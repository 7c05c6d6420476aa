"""Families of models: what each consists of, and the names of its weights in safetensors and in
GGUF. One short module a family; data and formulas.
"""
