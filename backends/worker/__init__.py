"""The process that runs one model: the choice of its runner, and the preparation of requests."""
