"""Hot operations: a PyTorch reference for each, and faster versions for some devices. Callers get
them from `table.pick`. Imports nothing from the rest of the project.
"""
