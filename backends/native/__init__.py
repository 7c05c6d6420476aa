"""The native runner: real checkpoints in our own PyTorch code, on CUDA, MPS and processors. Imports
torch, and neither llama_cpp nor transformers.
"""
