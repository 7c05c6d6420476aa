"""GGUF files: the structure check that comes before C++ sees one, and reading of metadata.

Pure Python. No model is run here.
"""
