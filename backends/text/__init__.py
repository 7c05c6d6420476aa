"""Tokenizer contract, chat templates and their sandbox, stop strings.

Nothing here runs a model or knows which runner does.
"""
