"""Tokenizer contract, chat templates and their sandbox, streaming detokenizer, stop strings.

Nothing here runs a model or knows which runner does.
"""
