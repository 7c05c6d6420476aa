"""Bundled models, catalogue, licences."""
