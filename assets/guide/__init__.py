"""guide: the small chat model that comes with Hearth, and everything it is made from.

Corpus generators, tokenizer, model, training, export and the held-out questions live here.
Nothing here runs at import, and the app needs none of it: the app reads the GGUF files alone.
"""
