"""The parameter table, one module an API family: which fields there are, what is done with them.

Only declarations stand here; what they mean is in `app.server.parameters` and `app.server.schema`.
"""
