-- dismiss: an instance ended in order: what it holds is released uncounted, so many attempts at once, and it is struck off with the last
-- uses: log, rows, cells, jobs
-- arguments: instance
-- keys: none
-- reply: 1 if it holds more: dismiss it again
-- cost: O(L) as settle for L attempts at once, and O(M) for M that it holds        -- promise: atomic a call
-- flags: allow-oom

local instance = REQ[1]
local holder = holders:get(instance)
if not holder then
    return finish(0)
end
local running, are_left = running_of(instance, function()
    return true
end, LIMIT.TAKEN_AT_ONCE)
if are_left then
    drop_idle(instance, holder) -- what is released is not told to it
else
    strike(instance)
end
for _, row in ipairs(running) do
    if row.profile.is_scope then
        lose(row, REASON.LOST)
    else
        release(row, REASON.STOPPED)
    end
end
wake_all()
return finish(are_left and 1 or 0)
