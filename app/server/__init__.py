"""The HTTP server with the APIs of OpenAI, Anthropic and Ollama, one module for each API family.

`application.build` makes the Starlette application, `running.Server` serves it with uvicorn.
Models run in the host's worker processes, and no URL that a request contains is fetched. Only
`hearth serve` imports this package.
"""
