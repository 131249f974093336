"""Joins: the public face over worker, cache and stores. The only importer of the three."""
