"""The models on this machine: listing, downloading, importing, quantizing and evaluating them.

Listing models reads headers only. Whatever runs a model does so in a process of its own.
"""
