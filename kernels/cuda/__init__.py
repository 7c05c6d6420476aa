"""Kernels for NVIDIA GPUs.

In Triton: products with packed matrices (`products.py`) and with 8-bit codes on both sides
(`codes.py`), attention over KV blocks (`decode_attention.py`, `prompt_attention.py`), the fused
operations around it (`fused.py`), and a guess of the next token (`draw.py`). Only these and
`turns.py` import triton; their callers import them when a GPU is used. In CUDA C++, compiled when a
GPU is used: products of few rows (`few_rows.cu`). The tests run all kernels on CPUs; they have run
on H100s and on H200s.
"""
