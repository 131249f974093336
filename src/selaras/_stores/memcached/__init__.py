"""A memcached on this machine as the host tier's shelf. It keeps no jobs and no log, and nothing relies on it."""
