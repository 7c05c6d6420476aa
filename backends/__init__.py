"""What runs a model."""
