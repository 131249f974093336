-- acquire: begins a writing() scope, or stands in line for a lock
-- uses: log, rows, cells, jobs
-- arguments: instance, id, blob
-- keys: none
-- cost: O(log N + K) for K keys        -- promise: atomic
-- flags: none

local fence, refusal = '', REFUSAL.LEASE_LOST
if holders:get(REQ[1]) then
    fence, refusal = open_scope(REQ[2], REQ[3], REQ[1])
    wake_all()
end
return finish(fence, refusal)
