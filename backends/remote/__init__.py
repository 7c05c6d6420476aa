"""Models that another machine serves, over any OpenAI-style HTTP API.

Here live the description of such a server, what each kind of server understands, and the `Backend`
that speaks to it from the front end's own process: no host, no worker. No model library and no
other runner may come in.
"""
