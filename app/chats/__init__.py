"""The history of chats: trees of messages in one SQLite file, searched, exported and imported.

Standard library only, synchronous and safe to call from any thread. No widgets, no models, no
network; what a chat says is never interpreted here.
"""
