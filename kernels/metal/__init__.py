"""Kernels for the GPUs of Apple (`kernels.metal`), and what starts them (`shaders.py`). The tests
run their text on processors; they never ran on hardware.
"""
