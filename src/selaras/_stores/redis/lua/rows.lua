-- rows: what every verb about jobs holds in its hands: rows, lanes, counts, turns, bells
-- keys: accepted asked batches cancels counts dependents directory due dyn edges ended expiry far holders idle jobs left lines members mixed offers outbox page_order pages queues ready strays turns
--
-- A job is a field of `jobs` (what was enqueued: a head of numbers, its profile, its extra, meta and payload; written
-- once) and one of `dyn` (what changes: an array of ROW). A plain job (it stands in no line, writes nothing, nobody
-- waits for it) has no `dyn` until it is claimed, and its payload is never looked into.

local text, byte = string.sub, string.byte
local rows, changed_rows = {}, {} -- id -> row, or false
local tickets = hash(K.jobs)
local dyns = hash(K.dyn)
local queues = hash(K.queues)
local turns = hash(K.turns)
local holders = hash(K.holders)
local ready = index(K.ready)
local due = index(K.due)
local cancels = index(K.cancels)
local idle = index(K.idle)
local outbox = index(K.outbox)
local FAR = 9007199254740991 -- a turn's number that none has: it is not known which was the last
local woken, woken_names, called = {}, {}, {}
local NOTHING = {}

local function is_accepted(id)
    return is_id(id)
end

-- What is made of an instance that was written over: it keeps its attempts, and goes on if it lives.
local function mend_holder()
    M.instances = M.instances + 1
    return { M.instances, NOW + LIMIT.MENDED_LEASE_US, 0, 0, LIMIT.MENDED_LEASE_US, {}, '', false, '', FAR, {} }
end

-- What is made of a turn that was written over: its claims come back to it when all jobs are looked through.
local function mend_turn()
    return { 0, {}, {}, {} }
end

-- Adds to a number in a hash. One that was written over becomes `instead`.
local function count_up(key, field, more, instead)
    local sum = redis.pcall('HINCRBY', key, field, more)
    if type(sum) == 'table' then
        damage(key)
        call('HSET', key, field, instead)
        return instead
    end
    return sum
end

local function wake(queue)
    if not woken_names[queue] then
        woken_names[queue] = true
        woken[#woken + 1] = queue
    end
end

-- Everything below a prefix, in the order of its bytes.
local function under(key, prefix, limit)
    if limit then
        return call('ZRANGE', key, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, limit)
    end
    return call('ZRANGE', key, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX')
end

local counted = {}

local function count_jobs(queue, state, jobs)
    local field = state .. queue -- a state is one digit
    counted[field] = (counted[field] or 0) + jobs
end

at_end(function()
    for field, jobs in pairs(counted) do
        if jobs ~= 0 then
            count_up(K.counts, field, jobs, math.max(jobs, 0))
        end
    end
end)

local gone_claims = {} -- field of a turn -> claims of it that have ended

local function turn_field(instance, turn)
    return sized(instance) .. struct.pack('>I8', turn)
end

local function drop_turn(field)
    turns:del(field)
    call('HDEL', K.left, field)
    call('ZREM', K.batches, field)
end

local function let_claims_go(instance, turn, claims)
    if turn > 0 then
        local field = turn_field(instance, turn)
        local gone = gone_claims[field]
        if gone then
            gone[1] = gone[1] + claims
        else
            gone_claims[field] = { claims, instance, turn }
        end
    end
end

at_end(function()
    for field, gone in pairs(gone_claims) do
        local left = count_up(K.left, field, -gone[1], 2147483647) -- it stays as long as its instance
        if left <= 0 then
            local holder = holders:get(gone[2])
            if not holder or gone[3] <= holder[HOLDER.acked] then
                drop_turn(field)
            end
        end
    end
end)

local profiles = {}

-- What a row ends with. Lua hashes a long text by some of its bytes only, of which the last is one: texts that end alike
-- lie in one long chain, and each new one is compared with all of them.
local function ending_of(number8)
    return '\205' .. text(number8, 7)
end

local function lane_of(queue, task)
    return struct.pack('>I2c0I2c0', #queue, queue, #task, task)
end

-- Returns what a profile says; false: it was written over.
local function profile_of(packed)
    local profile = profiles[packed]
    if profile == nil then
        profile = read_packed(packed, IS_PROFILE, 'a profile') or false
        if not profile then
            profiles[packed] = false
            return false
        end
        profile.rank = struct.pack('>I5', 549755813888 - profile[PROFILE.priority])
        profile.lane = lane_of(profile[PROFILE.queue], '')
        profile.is_scope = profile[PROFILE.kind] ~= KIND.TASK
        profiles[packed] = profile
    end
    return profile
end

local pages = {} -- page -> {names to add, ids to leave out}

local function page_at(number)
    local page = math.floor(number / LIMIT.PAGE)
    local changes = pages[page]
    if not changes then
        changes = { {}, {} }
        pages[page] = changes
    end
    return changes
end

local function note_number(id, number)
    local names = page_at(number)[1]
    names[#names + 1] = sized(id)
end

at_end(function()
    for page, changes in pairs(pages) do
        local names = call('HGET', K.pages, page)
        if not names then
            call('ZADD', K.page_order, page, page)
        elseif next(changes[2]) then
            local kept = {}
            for _, id in ipairs(unsized(names)) do
                if not changes[2][id] then
                    kept[#kept + 1] = sized(id)
                end
            end
            names = table.concat(kept)
        end
        names = (names or '') .. table.concat(changes[1])
        if names == '' then
            call('HDEL', K.pages, page)
            call('ZREM', K.page_order, page)
        else
            call('HSET', K.pages, page, names)
        end
    end
end)

local function has_effects()
    outbox:flush()
    return call('ZCARD', K.outbox) > 1 and 1 or 0
end

local function each_once(...)
    local seen, names = {}, {}
    for i = 1, select('#', ...) do
        local list = select(i, ...)
        for j = 1, #list do
            if not seen[list[j]] then
                seen[list[j]] = true
                names[#names + 1] = list[j]
            end
        end
    end
    return names, seen
end

local function is_paused(queue)
    return queues:get('p' .. queue)
end

local next_due -- when the next job's time comes; nil: that must be looked up

-- Lets jobs whose time has come go on. Returns how many.
local function promote(limit)
    due:flush()
    next_due = tonumber(call('ZRANGE', K.due, 0, 0, 'WITHSCORES')[2])
    if next_due and next_due > NOW then
        return 0
    end
    next_due = nil
    local found = call('ZRANGE', K.due, '-inf', NOW, 'BYSCORE', 'LIMIT', 0, limit)
    local slow = {}
    local function is_plain(member) -- 'p', and whole
        return byte(member, 9) == 112 and #member > 18 and #member > 18 + struct.unpack('>I2', member, 15)
    end
    for i = 1, #found do
        if not is_plain(found[i]) then
            slow[#slow + 1] = text(found[i], 10)
        end
    end
    if slow[1] then -- else nothing of it need be made
        read_ahead(slow)
    end
    for i = 1, #found do
        local member = found[i]
        local id = text(member, 10)
        local row
        if is_plain(member) then -- and no row of it was read
            local size = struct.unpack('>I2', member, 15)
            id = text(member, 19 + size)
            row = rows[id]
            if not row then
                local place = next_number()
                ready:add(text(member, 15, 18 + size) .. text(member, 10, 14) .. struct.pack('>I8', place) .. 'p' .. id)
                dyns:set(id, cmsgpack.pack({ STATE.READY, '', struct.unpack('>I8', member), '', 0, 0, WAY.PLAIN, '', 0, 0, 0, 0, false, 0, 0, place, NOW }) .. ending_of(text(member, 1, 8)))
                due:drop(member)
                local queue = text(member, 17, 16 + size)
                count_jobs(queue, STATE.SCHEDULED, -1)
                count_jobs(queue, STATE.READY, 1)
                wake(queue)
            end
        else
            row = get_row(id)
        end
        if row and row[ROW.state] == STATE.SCHEDULED then
            enter(row, EVENT.DUE)
        elseif row ~= nil then
            due:drop(member)
        end
    end
    return #found
end

local function next_due_us()
    local at = not due:flush() and next_due or tonumber(call('ZRANGE', K.due, 0, 0, 'WITHSCORES')[2])
    if not at or at == math.huge then
        return -1
    end
    return math.max(0, at - NOW)
end

local function cancels_of(instance)
    cancels:flush()
    if call('ZCARD', K.cancels) == 1 then -- the one that is always there
        return NOTHING
    end
    local prefix, asks = sized(instance), {}
    for _, member in ipairs(under(K.cancels, prefix)) do
        asks[#asks + 1] = text(member, #prefix + 17)
        asks[#asks + 1] = text(member, #prefix + 1, #prefix + 16)
    end
    return asks
end

local function drop_idle(instance, holder)
    if holder[HOLDER.idle] then
        for _, queue in ipairs(holder[HOLDER.idle]) do
            idle:drop(sized(queue) .. struct.pack('>I8', holder[HOLDER.code]) .. instance)
        end
        holder[HOLDER.idle] = false
        holders:set(instance, holder)
    end
end

-- Rings one idle instance for each queue that has news, and those that were asked to cancel.
local function wake_all()
    for _, queue in ipairs(woken) do
        idle:flush()
        local prefix = sized(queue)
        local first = under(K.idle, prefix, 1)[1]
        if first then
            local instance = text(first, #prefix + 9)
            local holder = holders:get(instance)
            if holder then
                drop_idle(instance, holder)
                ring(holder[HOLDER.bell])
            else
                idle:drop(first)
            end
        end
    end
    for _, instance in ipairs(called) do
        local holder = holders:get(instance)
        if holder then
            ring(holder[HOLDER.bell])
        end
    end
    woken, woken_names, called = {}, {}, {}
end

