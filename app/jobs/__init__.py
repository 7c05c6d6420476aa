"""Long jobs in their own child processes, with progress, cancellation and no orphans. `child` is
the working side, `job` the waiting side.
"""
