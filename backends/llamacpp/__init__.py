"""The llama.cpp runner, on the low-level ctypes API of llama-cpp-python.

GGUF files on CPU, Metal and CUDA builds. No other runner is imported here, and only this folder
imports llama_cpp.
"""
