"""Scheduler, sequences, sampling, stopping: pure Python and numpy.

Drives any runner through `runner.py`. No torch, no llama_cpp, no HTTP, no processes.
"""
