"""Chats that are open: their messages, the answer that is being generated, and what they need.

Knows no user interface; the terminal app and the line-by-line chat are built on it.
"""
