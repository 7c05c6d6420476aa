"""Kernels for Apple GPUs (`kernels.metal`) and the code that starts them (`shaders.py`). The tests
run the kernels' source on CPUs; it has never run on hardware.
"""
