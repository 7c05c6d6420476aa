"""The host process that front ends attach to: admission, which models are loaded, their workers."""
