-- invalidate: void names, set floors, close fills (L6)
-- uses: log, cells
-- keys: none
-- request: keys, tags, families, versions, closes
-- cost: O(1) a name, and O(1) an intent on it; promise: atomic
-- flags: allow-oom

cells_invalidate(unpack(REQ, 1, 5))
return finish()
