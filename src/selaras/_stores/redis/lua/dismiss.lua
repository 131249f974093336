-- dismiss: an instance ended in order: what it holds is released uncounted
-- uses: log, rows, cells, jobs
-- arguments: instance
-- keys: none
-- cost: O(M) for M attempts that it holds, and as settle        -- promise: atomic
-- flags: allow-oom

local instance = REQ[1]
local running = running_of(instance, function()
    return true
end)
if strike(instance) then
    for _, row in ipairs(running) do
        if row.profile.is_scope then
            lose(row, REASON.LOST)
        else
            release(row, REASON.STOPPED)
        end
    end
    wake_all()
end
return finish()
