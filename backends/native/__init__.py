"""The native runner: runs real checkpoints in Hearth's own PyTorch code, on CUDA, MPS and CPUs.

Imports torch, but neither llama_cpp nor transformers.
"""
