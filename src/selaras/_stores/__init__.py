"""Keep: one folder a store, nothing shared between them but the contracts."""
