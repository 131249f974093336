"""The embedded store: a partition a SQLite file, shared by the processes of one machine, with no server at all."""
