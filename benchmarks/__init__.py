"""Floors the product must not fall below, and what it measures now: `python -m benchmarks`."""
