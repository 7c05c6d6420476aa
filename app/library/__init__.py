"""The models on this machine: the bundled ones and the GGUF files of the library folder.

Reads headers only; nothing here runs a model, opens a connection or imports a runner.
"""
