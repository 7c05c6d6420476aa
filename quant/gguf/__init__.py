"""GGUF files: the structure check that runs before C++ code sees a file, and reading of metadata.

`reader.read_header` reads an untrusted file; `preflight.check` also verifies what a model must
declare to be loaded. Both are pure Python, use only the standard library and read no tensor data.
"""
