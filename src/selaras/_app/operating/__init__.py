"""What the command line asks of a store."""
