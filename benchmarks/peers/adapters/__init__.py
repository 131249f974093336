"""One file a peer: what it needs as inline script metadata, its settings as docstring, and how it enqueues and works."""
