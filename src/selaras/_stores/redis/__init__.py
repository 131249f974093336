"""The Redis and Valkey store: one Lua script a verb, all keys of a partition under one hash tag."""
