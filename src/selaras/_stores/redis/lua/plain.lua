-- plain: the short way for plain jobs: many at once, and nothing of them is looked into
-- keys: dyn due ended jobs ready

local RUNNING_HEAD = '\154' .. string.char(STATE.RUNNING) .. '\176' -- an array of 10; a text of 16
local SUCCEEDED_HEAD = '\157' .. string.char(STATE.SUCCEEDED) .. '\176' -- an array of 13; a text of 16

-- A batch of results: adds one to the number at its end.
local function count_success(told)
    local last = #told
    if type(told[last]) == 'number' then
        told[last] = told[last] + 1
    else
        told[last + 1] = 1
    end
end

-- Enqueues jobs of one profile. `jobs`: id, what differs, ...; `head`: what they have in common.
local function admit_plain(delay_us, head, jobs, admissions)
    local ids, count_of = {}, #jobs
    for i = 1, count_of, 2 do
        ids[#ids + 1] = jobs[i]
    end
    local twins = read_many(K.jobs, ids)
    local is_delayed = delay_us > 0
    local profile = profile_of(text(head, 3, 2 + struct.unpack('>I2', head)))
    local front = 'p' .. struct.pack('>I8I8', NOW, NOW + delay_us)
    local lane = is_delayed and 'p' .. profile.rank .. profile.lane or profile.lane .. profile.rank
    local score = is_delayed and NOW + delay_us or '0'
    local fields, entries, n, admitted = {}, {}, 0, 0
    local number, step = M.numbers, is_delayed and 1 or 2
    for i = 1, #ids do
        local id = ids[i]
        if twins[i] or rows[id] then
            M.numbers = number
            admissions[#admissions + 1] = admit(id, head .. jobs[2 * i])
            number = M.numbers
        else
            local number8 = struct.pack('>I8', number + 1)
            fields[n + 1] = id
            fields[n + 2] = front .. number8 .. head .. jobs[2 * i] .. text(number8, 7)
            entries[n + 1] = score
            entries[n + 2] = is_delayed and number8 .. lane .. id or lane .. number8 .. 'p' .. id
            n = n + 2
            note_number(id, number + 1)
            number = number + step
            admitted = admitted + 1
            count_success(admissions)
            if rows[id] == false then
                rows[id], tickets.rows[id] = nil, nil
            end
        end
    end
    M.numbers = number
    M.time = NOW
    call_many('HSET', K.jobs, fields, 2)
    call_many('ZADD', is_delayed and K.due or K.ready, entries, 2)
    count_jobs(profile[PROFILE.queue], is_delayed and STATE.SCHEDULED or STATE.READY, admitted)
    if admitted > 0 then
        wake(profile[PROFILE.queue])
    end
end

-- Of a claim of plain jobs: what their rows have in common, and how their ends look.
local tails = {}

local function tail_for(packed)
    local tail = tails[packed]
    if not tail then
        local instance, turn, started_us, is_plain, queue, ttl_us, attempt = cmsgpack.unpack(packed)
        tail = { instance = instance, turn = turn, is_plain = is_plain, queue = queue, keep_until_us = NOW + ttl_us }
        tail.ending = cmsgpack.pack('', turn, started_us, true, queue, ttl_us, attempt, NOW, NOW + ttl_us)
        tail.ending_without = tail.ending .. '\194' -- no result
        tails[packed] = tail
    end
    return tail
end

-- Ends attempts by success without effects. `ends`: true, then job, fence and result of each.
local function succeed_plain(instance, ends, told)
    local ids = {}
    for i = 2, #ends, 3 do
        ids[#ids + 1] = ends[i]
    end
    M.time = NOW
    local found = read_many(K.dyn, ids)
    local fields, entries, n = {}, {}, 0
    for i = 1, #ids do
        local id, fence, result, dyn = ids[i], ends[3 * i], ends[3 * i + 1], found[i]
        local tail
        if dyn and rows[id] == nil and text(dyn, 1, 3) == RUNNING_HEAD and text(dyn, 4, 19) == fence then
            tail = tail_for(text(dyn, 29, -4))
            if tail.instance ~= instance or not tail.is_plain then
                tail = nil
            end
        end
        if tail then
            fields[n + 1] = id
            local ending = result and tail.ending .. cmsgpack.pack(result) or tail.ending_without
            fields[n + 2] = SUCCEEDED_HEAD .. text(dyn, 4, 28) .. ending .. text(dyn, -3)
            entries[n + 1] = tail.keep_until_us
            entries[n + 2] = text(dyn, 21, 28) .. id
            n = n + 2
            tail.ended = (tail.ended or 0) + 1
            count_success(told)
        else
            call_many('HSET', K.dyn, fields, 2)
            call_many('ZADD', K.ended, entries, 2)
            fields, entries, n = {}, {}, 0
            local plain = plain_settlement(id, fence, EVENT.SUCCEED, '')
            plain[SETTLE.result] = result
            local outcome = settle(instance, plain)
            if outcome[1] == STATE.SUCCEEDED then
                count_success(told)
            else
                told[#told + 1] = outcome
            end
        end
    end
    call_many('HSET', K.dyn, fields, 2)
    call_many('ZADD', K.ended, entries, 2)
    for _, tail in pairs(tails) do
        if tail.ended then
            count_jobs(tail.queue, STATE.RUNNING, -tail.ended)
            count_jobs(tail.queue, STATE.SUCCEEDED, tail.ended)
            let_claims_go(tail.instance, tail.turn, tail.ended)
            tail.ended = nil
        end
    end
end

-- Settles, in the order given. Returns the outcomes: a number is so many successes.
local function settle_all(instance, groups)
    local told, ids = {}, {}
    for i = 1, #groups do
        if groups[i][1] ~= true then
            ids[#ids + 1] = groups[i][SETTLE.job]
        end
    end
    if #ids > 1 then
        read_ahead_to_write(ids)
    end
    for i = 1, #groups do
        local group = groups[i]
        if group[1] == true then
            succeed_plain(instance, group, told)
        else
            told[#told + 1] = settle(instance, group)
        end
    end
    return told
end

-- == claims

-- Returns the lanes from which a worker of these tasks may claim: of each queue the one for all, and those of strays.
local function lanes_for(names, tasks)
    local lanes = {}
    for _, queue in ipairs((each_once(names))) do
        if not is_paused(queue) then
            local lane = lane_of(queue, '')
            local upper = '(' .. text(lane, 1, -3) .. '\255'
            lanes[#lanes + 1] = lane
            while true do
                local stray = call('ZRANGE', K.ready, '(' .. lane .. '\255', upper, 'BYLEX', 'LIMIT', 0, 1)[1]
                if not stray then
                    break
                end
                local at = #queue + 3
                local size = struct.unpack('>I2', stray, at)
                lane = text(stray, 1, at + 1 + size)
                if tasks[text(stray, at + 2, at + 1 + size)] then
                    lanes[#lanes + 1] = lane
                end
            end
        end
    end
    return lanes
end

-- Returns members of `ready` that come next, in order, and for each how long its lane's name is.
local function next_ready(lanes, most)
    if #lanes == 1 then
        return under(K.ready, lanes[1], most), #lanes[1]
    end
    local found, sizes = {}, {}
    for _, lane in ipairs(lanes) do
        for _, member in ipairs(under(K.ready, lane, most)) do
            found[#found + 1] = member
            sizes[member] = #lane
        end
    end
    table.sort(found, function(a, b)
        return is_before(text(a, sizes[a] + 1, sizes[a] + 13), text(b, sizes[b] + 1, sizes[b] + 13))
    end)
    for i = #found, most + 1, -1 do
        found[i] = nil
    end
    return found, sizes
end

-- Claims up to `limit` jobs. Returns what is told of them, (job, fence, ...), pre-images, and whether more could be had.
local function claim_all(instance, turn, names, tasks, limit)
    local claims, taken, preimages = {}, {}, {}
    if #names == 0 then
        return claims, taken, preimages, false
    end
    local commons = {} -- profile -> what rows of one claim have in common
    local left = limit
    while true do
        ready:flush()
        local lanes = lanes_for(names, tasks)
        if #lanes == 0 then
            return claims, taken, preimages, false
        end
        local most = math.min(left + 1, 1000)
        local found, sizes = next_ready(lanes, most)
        local ids, slow = {}, {}
        for i = 1, #found do
            local at = type(sizes) == 'number' and sizes or sizes[found[i]]
            ids[i] = text(found[i], at + 15)
            if byte(found[i], at + 14) ~= 112 then
                slow[#slow + 1] = ids[i]
            end
        end
        local kept = read_many(K.jobs, ids)
        if #slow > 1 then
            for i = 1, #found do
                if byte(found[i], (type(sizes) == 'number' and sizes or sizes[found[i]]) + 14) ~= 112 and rows[ids[i]] == nil then
                    tickets.rows[ids[i]] = kept[i]
                end
            end
            local keys = read_ahead_to_write(slow)
            if #keys > 1 then
                hash(K.entries, true):prefetch(keys)
                hash(K.floors):prefetch(keys)
            end
        end
        local fields, drops, n, outcome = {}, {}, 0, nil
        local function write_plain()
            call_many('HSET', K.dyn, fields, 2)
            call_many('ZREM', K.ready, drops)
            fields, drops, n = {}, {}, 0
        end
        for i = 1, #found do
            local id, member, ticket = ids[i], found[i], kept[i]
            local at = type(sizes) == 'number' and sizes or sizes[member]
            local is_plain = byte(member, at + 14) == 112 and not rows[id]
            local row, profile
            if is_plain then
                profile = profile_of(text(ticket, 28, 27 + byte(ticket, 26) * 256 + byte(ticket, 27)))
            else
                if rows[id] == nil then
                    tickets.rows[id] = ticket
                end
                row = get_row(id)
                profile = row.profile
            end
            if not tasks[profile[PROFILE.task]] then
                lay_aside(row or get_row(id))
            elseif left == 0 then
                outcome = 'more'
                break
            elseif is_plain then
                local common = commons[profile]
                if not common then
                    local ttl = profile[PROFILE.result_ttl_us]
                    common = { 0, cmsgpack.pack(instance, turn, NOW, true, profile[PROFILE.queue], ttl, 1) }
                    commons[profile] = common
                end
                common[1] = common[1] + 1
                local fence = next_counter()
                local dyn = RUNNING_HEAD .. fence .. '\207' .. text(ticket, 18, 25) .. common[2] .. '\205' .. text(ticket, -2)
                if dyns.rows[id] ~= nil then
                    dyns:set(id, dyn)
                else
                    fields[n + 1], fields[n + 2] = id, dyn
                    n = n + 2
                end
                drops[#drops + 1] = member
                local last = #taken
                taken[last + 1], taken[last + 2] = id, fence
                last = #claims
                claims[last + 1], claims[last + 2], claims[last + 3] = id, fence, ticket
                left = left - 1
            else
                write_plain()
                if row[ROW.expires_us] > 0 and row[ROW.expires_us] <= NOW then
                    expire_one(row)
                    outcome = 'again' -- its line goes on with another
                    break
                end
                local told = claim(row, instance, turn)
                taken[#taken + 1], taken[#taken + 2] = id, told[2]
                if #told[7] > 0 then
                    preimages[#preimages + 1] = { id, told[7] }
                end
                claims[#claims + 1] = told
                left = left - 1
            end
        end
        write_plain()
        if outcome == 'more' or (not outcome and #found < most) then
            for profile, common in pairs(commons) do
                count_jobs(profile[PROFILE.queue], STATE.READY, -common[1])
                count_jobs(profile[PROFILE.queue], STATE.RUNNING, common[1])
            end
            return claims, taken, preimages, outcome == 'more'
        end
    end
end

-- Tells the claims of a turn again: those that still stand.
local function claims_again(instance, told)
    local claims, preimages, ids = {}, {}, {}
    for _, one in ipairs(told[TOLD.preimages]) do
        preimages[one[1]] = one[2]
    end
    local taken = told[TOLD.claims]
    for i = 1, #taken, 2 do
        ids[#ids + 1] = taken[i]
    end
    read_ahead(ids)
    for i = 1, #taken, 2 do
        local row = jobs_holds(instance, taken[i], taken[i + 1])
        if row then
            claims[#claims + 1] = claim_of(row, preimages[row.id] or NOTHING)
        end
    end
    return claims
end
