"""Running models: the engine, its runners, and the processes around them."""
