"""Checkpoints whose matrices are quantized: what `quantization_config` says (`config.py`, and a
module for each format), which tensors make up a matrix (`modules.py`), both without torch; and
reading them into packed weights without requantizing (`reading.py`).
"""
