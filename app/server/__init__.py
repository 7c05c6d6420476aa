"""The OpenAI-style endpoint: HTTP in, requests to the host out, one module an API family.

`application.build` makes the Starlette application, `running.Server` serves it with uvicorn.
Nothing here runs a model or fetches what a request names, and only `hearth serve` imports it.
"""
