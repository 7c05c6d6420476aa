"""Benchmarks of a model: the engine compared with a raw ctypes loop over the same loaded library,
or with transformers. Front ends run them in a separate process, without data of users' requests.
"""
