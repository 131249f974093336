-- plant: plants intents of a running attempt (P14, P17)
-- uses: log, rows, cells, jobs
-- arguments: instance, owner, keys
-- reply: 1 if it was refused
-- keys: none
-- cost: O(log N) a key        -- promise: atomic; twice is once, and one more event a key
-- flags: none

local intents = hash(K.intents)
local instance, owner, keys = REQ[1], REQ[2], REQ[3]
local is_home = owner[1] == M.index
if is_home and not jobs_holds(instance, owner[2], owner[3]) then
    return finish(1)
end
if #keys > 1 then
    intents:prefetch(keys)
end
for _, key in ipairs(keys) do
    if cells_outlived(owner, key) then
        return finish(1)
    end
end
if is_home then
    jobs_planted(owner[2])
end
for _, key in ipairs(keys) do
    cells_plant(owner, key)
end
return finish(0)
