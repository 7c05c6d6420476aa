"""Long jobs in child processes of their own: progress, cancelling, and no orphans. `child` is the
side that works, `job` the one that waits.
"""
