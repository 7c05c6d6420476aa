"""Declarations of the requests and responses of all endpoints, one module for each API family.

Their classes are in `app.server.parameters` and `app.server.schema`.
"""
