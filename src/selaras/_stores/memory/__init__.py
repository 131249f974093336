"""The reference: the contract in its most readable form, for tests and as the model of the others."""

from selaras._stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
