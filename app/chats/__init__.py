"""The chat history: trees of messages in one SQLite file, with search, export and import.

Standard library only, synchronous, and safe to call from any thread. No widgets, models or network;
the content of chats is never interpreted here.
"""
