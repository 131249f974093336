"""The same program on one SQLite file."""
# /// script
# dependencies = ["-e {root}[uvloop]"]
# [tool.peer]
# jobs = 60000
# shown = ["selaras"]
# store = "sqlite"
# lease_is = "SELARAS_LEASE=2"
# ///

from benchmarks.peers.adapters.selaras import close, command, enqueue, enqueue_many, open

__all__ = ["close", "command", "enqueue", "enqueue_many", "open"]
