-- queues: every queue: how many jobs are in which state, what is ready and since when, who serves it, pauses
-- uses: none
-- keys: counts dyn jobs queues ready
-- cost: O(Q log N) for Q queues, lanes and priorities        -- promise: one moment
-- flags: no-writes

-- Since when the member of `ready` has been ready.
local function ready_us_of(id)
    local dyn, ticket = call('HGET', K.dyn, id), call('HGET', K.jobs, id)
    local is_read, row = pcall(cmsgpack.unpack, dyn or '')
    local at = is_read and type(row) == 'table' and row[ROW.ready_us]
    return tonumber(at) or (ticket and #ticket > 9 and struct.unpack('>I8', ticket, 2)) or NOW
end

local lanes, from = {}, '-'
while true do
    local member = call('ZRANGE', K.ready, from, '(\255', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
        break
    end
    local is_read, queue, task, at = pcall(struct.unpack, '>I2c0I2c0', member)
    local lane = is_read and string.sub(member, 1, at - 1) or member
    local oldest
    local first = is_read and #member >= at + 13 and member or nil
    while first do -- of all priorities, the one that has stood there longest
        if not oldest or string.sub(first, at + 5, at + 12) < string.sub(oldest, at + 5, at + 12) then
            oldest = first
        end
        first = call('ZRANGE', K.ready, '[' .. string.sub(first, 1, at + 4) .. '\255', '(' .. lane .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
    if oldest then
        lanes[#lanes + 1] = { queue, task, call('ZLEXCOUNT', K.ready, '[' .. lane, '(' .. lane .. '\255'), ready_us_of(string.sub(oldest, at + 14)) }
    end
    from = '(' .. lane .. '\255'
end
return finish(call('HGETALL', K.counts), lanes, call('HGETALL', K.queues))
