"""Selaras and the job queues beside it, measured in one run: `python -m benchmarks.peers`."""
