-- outbox: reads effects for other partitions, oldest first
-- uses: none
-- arguments: limit
-- keys: outbox
-- cost: O(limit)        -- promise: one moment
-- flags: no-writes

return finish(call('ZRANGE', K.outbox, '-', '(\255', 'BYLEX', 'LIMIT', 0, REQ[1]))
