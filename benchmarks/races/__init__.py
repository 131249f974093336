"""How often caches serve what is stale, forced and counted: naive cache-aside, other libraries, and Selaras."""
