"""Kernels for NVIDIA cards in Triton: products with packed matrices (`products.py`), attention of
single tokens over pages (`decode_attention.py`) and what is fused around it (`fused.py`). Only
these three import triton; what calls them imports them when a card is used. They are compiled and
interpreted in the tests, and were not run on hardware.
"""
