"""The machine: threads, memory, GPUs, processes and helpers, locks, sockets, files."""
