"""Products with packed matrices on CPUs: a small library in C and its callers."""
