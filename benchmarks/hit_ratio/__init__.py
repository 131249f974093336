"""How often the local tier answers, beside other policies on the same traces: see README.md."""
