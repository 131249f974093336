"""Serves: the local tier, the log's follower, single flight, and what the current job must see."""
