"""Decides: pure rules with no clock, loop, socket or disk; records in, records out."""
