"""Kernels for NVIDIA cards. In Triton: products with packed matrices (`products.py`), with codes of
eight bits on both sides (`codes.py`), attention of single tokens over pages (`decode_attention.py`)
and what is fused around it (`fused.py`); only these and `turns.py` import triton, and what calls
them imports them when a card is used. In CUDA C++, compiled when a card is used: products of few
rows (`few_rows.cu`). All run on processors in the tests, and ran on an H100 and on H200s.
"""
