"""The parts of screens; each knows only how it looks, and nothing about stores and backends."""
