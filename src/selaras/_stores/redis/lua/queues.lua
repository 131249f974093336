-- queues: every queue: how many jobs are in which state, what is ready and since when, who serves it, pauses
-- uses: none
-- keys: counts dyn jobs queues ready
-- cost: O(Q log N) for Q queues, lanes and priorities        -- promise: one moment
-- flags: no-writes

-- Since when the member of `ready` has been ready.
local function ready_us_of(id)
    local dyn = call('HGET', K.dyn, id)
    local at = dyn and cmsgpack.unpack(dyn)[ROW.ready_us]
    return at or struct.unpack('>I8', call('HGET', K.jobs, id), 2)
end

local lanes, from = {}, '-'
while true do
    local member = call('ZRANGE', K.ready, from, '(\255', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
        break
    end
    local queue, task, at = struct.unpack('>I2c0I2c0', member)
    local lane = string.sub(member, 1, at - 1)
    local oldest
    local first = member
    while first do -- of all priorities, the one that has stood there longest
        if not oldest or string.sub(first, at + 5, at + 12) < string.sub(oldest, at + 5, at + 12) then
            oldest = first
        end
        first = call('ZRANGE', K.ready, '[' .. string.sub(first, 1, at + 4) .. '\255', '(' .. lane .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
    lanes[#lanes + 1] = { queue, task, call('ZLEXCOUNT', K.ready, '[' .. lane, '(' .. lane .. '\255'), ready_us_of(string.sub(oldest, at + 14)) }
    from = '(' .. lane .. '\255'
end
return finish(call('HGETALL', K.counts), lanes, call('HGETALL', K.queues))
