"""What this process has open and shares: the store, the cache, leases, resources, the loop of blocking calls."""
