"""Products with packed matrices on processors: a small library in C, and what calls it."""
