-- greet: makes a partition, or begins a new epoch of one that its server may have forgotten parts of
-- uses: none
-- keys: meta
-- cost: O(1)                           -- promise: atomic
-- flags: none

return finish()
