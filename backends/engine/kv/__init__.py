"""KV cache management: which tokens are held where, by which prefixes, and what is evicted.

The scheduler uses `manager.py`; `tree.py` holds the tokens; `blocks.py` and `sequences.py` are the
leaves of the tree, over the two kinds of store that runners offer (`store.py`).
"""
