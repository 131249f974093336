"""Handles of cached values: families, keys, tags, and the scopes that write them."""
