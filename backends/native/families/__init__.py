"""Families of models: how each says what it is made of, and where its weights lie in files. One
short module a family; data and formulas, no arithmetic on weights except undoing quirks.
"""
