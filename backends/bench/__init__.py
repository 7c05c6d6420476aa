"""Measures a model in a process of its own: the engine beside a raw ctypes loop over the same
loaded library. `child.py` is what front ends hold; the rest runs behind
`python -P -m hearth.backends.bench`. Nothing of a user's requests comes in here.
"""
