"""Hot operations: a PyTorch reference for each, and faster ones a device where there are such.
Callers get them from `table.pick`. Imports nothing of ours.
"""
