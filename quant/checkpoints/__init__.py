"""Checkpoints with quantized matrices: parsing `quantization_config` (`config.py`, and a module for
each format) and finding the tensors of a matrix (`modules.py`), both without torch; and reading
them into packed weights without requantizing (`reading.py`).
"""
