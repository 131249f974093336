"""One file a cache: what it needs, how its users would set it, and how it reads, writes and forgets."""
