"""The program as its workers see it: from a claim to a settlement."""
