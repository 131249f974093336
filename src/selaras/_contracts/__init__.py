"""Promises: what the runtime needs from a store and from the machine, and the laws they keep."""
