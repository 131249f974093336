"""Decisions about cached values."""
