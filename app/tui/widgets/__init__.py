"""The parts of screens; each knows its own looks, and nothing of stores and backends."""
