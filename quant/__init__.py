"""Formats and algorithms."""
