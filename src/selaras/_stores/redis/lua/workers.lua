-- workers: the instances that hold attempts, and the queues that they serve
-- of: jobs
-- keys: asked batches meta mixed
-- made: with the part before it

-- Returns the running jobs of an instance, oldest claim first, so many at most, and whether there may be more. `is_wanted`:
-- which (job, fence, turn) to look at.
local function running_of(instance, is_wanted, most)
    local wanted = {}
    local prefix = sized(instance)
    local fields = under(K.batches, prefix)
    turns:prefetch(fields)
    for _, field in ipairs(fields) do
        local turn = #field == #prefix + 8 and struct.unpack('>I8', field, #prefix + 1)
        local told = turn and turns:get(field)
        local claims = told and told[TOLD.claims] or NOTHING
        for i = 1, #claims, 2 do
            if is_wanted(claims[i], claims[i + 1], turn) then
                wanted[#wanted + 1] = { claims[i], claims[i + 1] }
            end
        end
    end
    asked:flush()
    for _, member in ipairs(under(K.asked, prefix)) do
        local id = text(member, #prefix + 9)
        local row = get_row(id)
        if row and is_wanted(id, row[ROW.fence], 0) then
            wanted[#wanted + 1] = { id, row[ROW.fence] }
        end
    end
    table.sort(wanted, function(a, b)
        return a[2] < b[2]
    end)
    local running, step = {}, most or math.max(1, #wanted)
    for first = 1, #wanted, step do
        local ids = {}
        for i = first, math.min(first + step - 1, #wanted) do
            ids[#ids + 1] = wanted[i][1]
        end
        read_ahead(ids)
        for i = first, first + #ids - 1 do
            running[#running + 1] = jobs_holds(instance, wanted[i][1], wanted[i][2])
            if #running == most and i < #wanted then
                return running, true
            end
        end
    end
    return running, false
end

local function serve(queues_served, jobs)
    for _, queue in ipairs((each_once(queues_served))) do
        local field = 's' .. queue
        local served = (tonumber(queues:get(field)) or 0) + jobs
        if served > 0 then
            queues:set(field, string.format('%d', served))
        else
            queues:del(field)
        end
    end
    M.serving = M.serving + 1
end

-- Strikes an instance off, with its turns. Returns whether it was known.
local function strike(instance)
    local holder = holders:get(instance)
    if not holder then
        return false
    end
    drop_idle(instance, holder)
    serve(holder[HOLDER.queues], -1)
    holders:del(instance)
    for _, field in ipairs(under(K.batches, sized(instance))) do
        drop_turn(field)
    end
    return true
end

-- The served queues have changed: heads of lines in which several queues wait may change too. Goes round them, so many at
-- once at most, until all have been seen since. Returns whether there are more.
local function arrange_some()
    if M.arranged == M.serving then
        return false
    end
    mixed:flush()
    local kept = call('HGET', K.meta, 'arranging') -- as of which change; where the round ends; how far it has come
    local is_read, serving, stop, cursor = pcall(struct.unpack, '>dI4c0I4c0', kept or '')
    if not is_read then
        serving, stop, cursor = M.serving, '', ''
    elseif serving ~= M.serving then
        stop = cursor
    end
    local left = LIMIT.ARRANGED_AT_ONCE
    while left > 0 do
        local is_first_part = stop ~= '' and not is_before(cursor, stop)
        local upper = (is_first_part or stop == '') and '(\255' or '[' .. stop
        local names = call('ZRANGE', K.mixed, cursor == '' and '-' or '(' .. cursor, upper, 'BYLEX', 'LIMIT', 0, left)
        for _, name in ipairs(names) do
            if lines:get(name) then
                arrange(name)
            else
                mixed:drop(name)
            end
        end
        if #names == left then
            cursor = names[left]
            break
        elseif not is_first_part then -- all round
            M.arranged = M.serving
            call('HDEL', K.meta, 'arranging')
            return false
        end
        left, cursor = left - #names, ''
    end
    call('HSET', K.meta, 'arranging', struct.pack('>dI4c0I4c0', M.serving, #stop, stop, #cursor, cursor))
    return true
end
