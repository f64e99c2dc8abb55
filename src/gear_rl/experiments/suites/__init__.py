"""Benchmarks whose own tools score: how each is run, and what its files say. Knows no model."""
