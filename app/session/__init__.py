"""Open chats: their messages, the answer that is being generated, and the services they use.

Independent of any user interface; the terminal app and the line-by-line chat are built on it.
"""
