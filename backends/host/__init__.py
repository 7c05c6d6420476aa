"""The host process that front ends attach to: admission of calls, model loading, and workers."""
