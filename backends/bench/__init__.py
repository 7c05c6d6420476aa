"""Measures a model: the engine beside a raw ctypes loop over the same loaded library, or beside
transformers. Front ends run it in a process of its own. Nothing of a user's requests comes in here.
"""
