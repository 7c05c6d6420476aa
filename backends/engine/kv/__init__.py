"""The one account of the KV cache: which tokens are held where, by whom, and what makes way.

`manager.py` is what the scheduler uses; `tree.py` holds the tokens; `blocks.py` and `sequences.py`
are its leaves, over the two kinds of store that runners offer (`store.py`).
"""
