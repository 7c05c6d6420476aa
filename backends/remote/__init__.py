"""Models that another machine serves, over any OpenAI-style HTTP API.

This package has the description of such a server, the parameters that each kind of server
supports, and the `Backend` that talks to it from the front end's own process, without host and
worker. It must not import model libraries or other runners.
"""
