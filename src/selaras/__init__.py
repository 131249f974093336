"""Background jobs whose workers never act on a stale cached value."""
