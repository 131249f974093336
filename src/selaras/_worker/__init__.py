"""Runs: turns, attempts, leases and processes. Knows stores and tasks only through the contracts."""
