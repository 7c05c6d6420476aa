"""Kernels for NVIDIA cards in Triton: products with packed matrices (`products.py`), with codes of
eight bits on both sides (`codes.py`), attention of single tokens over pages (`decode_attention.py`)
and what is fused around it (`fused.py`). Only these four import triton; what calls them imports
them when a card is used. They are compiled and interpreted in the tests, and were tried on one
H200.
"""
