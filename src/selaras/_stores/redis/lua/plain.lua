-- plain: the short way for plain and lined jobs: many at once, and little of them is looked into
-- keys: dyn due ended entries floors intents jobs lines members ready

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
            rows[id], tickets.rows[id] = nil, nil -- that it was not there is not true any more
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

-- Enqueues lined jobs of one profile. `jobs`: id, line, what differs, ...; `head`: what they have in common. Those whose
-- line is taken go the long way.
local function admit_lined(head, jobs, admissions)
    local ids, names = {}, {}
    for i = 1, #jobs, 3 do
        ids[#ids + 1], names[#names + 1] = jobs[i], jobs[i + 1]
    end
    local twins, lines = read_many(K.jobs, ids), hash(K.lines)
    lines:prefetch(names)
    local profile = profile_of(text(head, 3, 2 + struct.unpack('>I2', head)))
    local front, common = 'l' .. struct.pack('>I8I8', NOW, NOW), text(head, 1, -5)
    local lane, group = profile.lane .. profile.rank, 'q' .. profile[PROFILE.queue]
    local place = sized(group) .. profile.rank
    local fields, entries, heads, n, admitted = {}, {}, {}, 0, 0
    local function write()
        call_many('HSET', K.jobs, fields, 2)
        call_many('ZADD', K.ready, entries, 2)
        call_many('ZADD', K.members, heads, 2)
        fields, entries, heads, n = {}, {}, {}, 0
    end
    for i = 1, #ids do
        local id, name, rest = ids[i], names[i], jobs[3 * i]
        if twins[i] or rows[id] or lines:get(name) then
            write()
            admissions[#admissions + 1] = admit(id, common .. rest)
        else
            local number = next_number()
            local number8 = struct.pack('>I8', number)
            fields[n + 1], fields[n + 2] = id, front .. number8 .. common .. rest .. text(number8, 7)
            entries[n + 1], entries[n + 2] = '0', lane .. number8 .. 'l' .. id
            heads[n + 1], heads[n + 2] = '0', sized(name) .. place .. number8 .. id
            n = n + 2
            lines:set(name, { '', id, { group }, 1 })
            note_number(id, number)
            admitted = admitted + 1
            count_success(admissions)
            rows[id], tickets.rows[id] = nil, nil
        end
    end
    write()
    M.time = NOW
    count_jobs(profile[PROFILE.queue], STATE.READY, admitted)
    if admitted > 0 then
        wake(profile[PROFILE.queue])
    end
end

-- Of a claim of plain or lined jobs: what their rows have in common, and how their ends look.
local tails = {}

local function tail_for(packed)
    local tail = tails[packed]
    if not tail then
        local is_read, instance, turn, started_us, way, queue, ttl_us, attempt = pcall(cmsgpack.unpack, packed)
        if not (is_read and type(queue) == 'string' and type(ttl_us) == 'number' and type(turn) == 'number') then
            way, ttl_us = WAY.OTHER, 0 -- looked at again where such rows are mended
        end
        tail = { instance = instance, turn = turn, way = way, queue = queue, keep_until_us = NOW + ttl_us }
        tail.ending = cmsgpack.pack('', turn, started_us, way, queue, ttl_us, attempt, NOW, NOW + ttl_us)
        tail.ending_without = tail.ending .. '\194' -- no result
        tails[packed] = tail
    end
    return tail
end

-- What else a lined job has: its line, and the key that it writes, if it does.
local function extra_of(ticket)
    local at = #ticket > 36 and 28 + byte(ticket, 26) * 256 + byte(ticket, 27)
    local size = at and at + 9 <= #ticket and struct.unpack('>I4', ticket, at)
    local extra = size and read_packed(text(ticket, at + 4, at + 3 + size), IS_EXTRA, 'a job')
    if not extra or not extra[EXTRA.line] then
        return nil
    end
    return extra[EXTRA.line], extra[EXTRA.writes] and extra[EXTRA.writes][1]
end

-- Reads what the ends of lined jobs need: their lines, and the intents on their keys.
local function read_lined(ids)
    local lined, names, keys = {}, {}, {}
    local kept = read_many(K.jobs, ids)
    for i = 1, #ids do
        if kept[i] then
            local name, key = extra_of(kept[i])
            if name then
                lined[ids[i]] = { name, key }
                names[#names + 1], keys[#keys + 1] = name, key
            end
        end
    end
    hash(K.lines):prefetch(names)
    hash(K.intents):prefetch(keys)
    return lined
end

-- Whether a lined job has its line, and says no more than it may: what it is to end by success without being looked into.
local function is_in_line(id, its, key)
    local line = its and hash(K.lines):get(its[1])
    return line and line[LINE.holder] == id and (not key or its[2] == key)
end

-- Ends attempts by success with no effect but on the one key that a lined job writes. `ends`: the size of what is said of
-- each; job, fence, result; where there is more: the key that it says it writes, and what it puts there.
local function succeed(instance, ends, told)
    local step, ids, ways, long = ends[1], {}, {}, {}
    for i = 2, #ends, step do
        ids[#ids + 1] = ends[i]
    end
    M.time = NOW
    local found = read_many(K.dyn, ids)
    for i = 1, #ids do
        local id, dyn = ids[i], found[i]
        if dyn and rows[id] == nil and text(dyn, 1, 3) == RUNNING_HEAD and text(dyn, 4, 19) == ends[step * (i - 1) + 3] then
            local tail = tail_for(text(dyn, 29, -4))
            if tail.instance == instance and tail.way ~= WAY.OTHER then
                ways[id] = tail
                if tail.way == WAY.LINED then
                    long[#long + 1] = id
                end
            end
        end
    end
    local lined = #long > 0 and read_lined(long)
    local lines = lined and hash(K.lines)
    local fields, entries, n = {}, {}, 0
    local function write()
        call_many('HSET', K.dyn, fields, 2)
        call_many('ZADD', K.ended, entries, 2)
        fields, entries, n = {}, {}, 0
    end
    for i = 1, #ids do
        local at = step * (i - 1) + 2
        local id, fence, result, key, put = unpack(ends, at, at + step - 1)
        local tail = ways[id]
        ways[id] = nil -- once
        local its = tail and tail.way == WAY.LINED and lined[id]
        if tail and rows[id] == nil and (is_in_line(id, its, key) or (tail.way == WAY.PLAIN and not key)) then
            local dyn, stored = found[i], nil
            if its then
                if its[2] then
                    local position, stamp = cells_resolve({ M.index, id, fence }, its[2], put or nil)
                    stored = position and { { its[2], position, stamp } }
                end
                local name = its[1]
                local line = lines:get(name)
                line[LINE.holder] = ''
                if line[LINE.waiting] > 0 then
                    arrange(name)
                else
                    lines:del(name)
                end
            end
            fields[n + 1] = id
            local ending = result and tail.ending .. cmsgpack.pack(result) or tail.ending_without
            fields[n + 2] = SUCCEEDED_HEAD .. text(dyn, 4, 28) .. ending .. text(dyn, -3)
            entries[n + 1] = tail.keep_until_us
            entries[n + 2] = text(dyn, 21, 28) .. id
            n = n + 2
            tail.ended = (tail.ended or 0) + 1
            if stored then
                told[#told + 1] = { STATE.SUCCEEDED, '', stored, NOTHING }
            else
                count_success(told)
            end
        else
            write()
            local full = plain_settlement(id, fence, EVENT.SUCCEED, '')
            full[SETTLE.result] = result
            if key then
                full[SETTLE.writes], full[SETTLE.puts] = { key }, put and { put } or NOTHING
            end
            local outcome = settle(instance, full)
            if outcome[1] == STATE.SUCCEEDED and #outcome[3] == 0 then
                count_success(told)
            else
                told[#told + 1] = outcome
            end
        end
    end
    write()
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
        if type(groups[i][1]) ~= 'number' then
            ids[#ids + 1] = groups[i][SETTLE.job]
        end
    end
    if #ids > 1 then
        read_ahead_to_write(ids)
    end
    for i = 1, #groups do
        local group = groups[i]
        if type(group[1]) == 'number' then
            succeed(instance, group, told)
        else
            told[#told + 1] = settle(instance, group)
        end
    end
    return told
end

-- == claims

-- Returns the lanes from which a worker of these tasks may claim: of each queue the one for all, and those of what was laid aside.
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
                local size = #stray > at and struct.unpack('>I2', stray, at)
                if not size or #stray < at + 1 + size + 14 then
                    damage('ready')
                    lane = stray
                    ready:drop(stray)
                else
                    lane = text(stray, 1, at + 1 + size)
                    if tasks[text(stray, at + 2, at + 1 + size)] then
                        lanes[#lanes + 1] = lane
                    end
                end
            end
        end
    end
    return lanes
end

-- Returns what comes next in a queue, and how long its lane's name is; nil: some of it was laid aside.
local function next_in_one(queue, most)
    local lane = lane_of(queue, '')
    local upper = '(' .. text(lane, 1, -3) .. '\255'
    local found = call('ZRANGE', K.ready, '[' .. lane, upper, 'BYLEX', 'LIMIT', 0, most)
    local last = found[#found]
    if last and text(last, 1, #lane) ~= lane then
        return nil
    end
    if #found == most and call('ZRANGE', K.ready, '(' .. lane .. '\255', upper, 'BYLEX', 'LIMIT', 0, 1)[1] then
        return nil
    end
    return found, #lane
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

-- Reads what the claims of lined jobs need. Returns of each its line and its key, by its place.
local function read_ahead_to_line(ids, flags, kept)
    local lined, names, keys = {}, {}, {}
    for i = 1, #ids do
        if flags[i] == 'l' and kept[i] and not rows[ids[i]] then
            local name, key = extra_of(kept[i])
            if name then
                lined[i] = { name, key }
                names[#names + 1], keys[#keys + 1] = name, key
            end
        end
    end
    if #names > 0 then
        hash(K.lines):prefetch(names)
        hash(K.intents):prefetch(keys)
        hash(K.entries):prefetch(keys)
        hash(K.floors):prefetch(keys)
    end
    return lined
end

local function is_head(id, its)
    local line = its and hash(K.lines):get(its[1])
    return line and line[LINE.head] == id and line[LINE.holder] == ''
end

-- Returns the profile of a job that is plain or lined, as the flag of its member says; nil: it must be looked into.
local function profile_of_plain(ticket, flag)
    local last = ticket and #ticket > 36 and byte(ticket) == byte(flag) and 27 + byte(ticket, 26) * 256 + byte(ticket, 27)
    return last and last + 9 < #ticket and profile_of(text(ticket, 28, last))
end

-- Gives a lined job its line, and plants its intent. Returns the pre-image that its claim carries, if there is one.
local function take_lined(id, fence, profile, ticket, its)
    local name, key = its[1], its[2]
    local lines = hash(K.lines)
    local line = lines:get(name)
    line[LINE.holder], line[LINE.head], line[LINE.waiting] = id, '', line[LINE.waiting] - 1
    lines:set(name, line)
    index(K.members):drop(sized(name) .. sized('q' .. profile[PROFILE.queue]) .. profile.rank .. text(ticket, 18, 25) .. id)
    local entry = key and cells_plant({ M.index, id, fence }, key)
    return entry and profile[PROFILE.wants_preimage] and { key, entry[1], entry[2] }
end

-- Claims up to `limit` jobs. Returns what is told of them, (job, fence, ...), pre-images, and whether more could be had.
local function claim_all(instance, turn, names, tasks, full, limit)
    local claims, taken, preimages = {}, {}, {}
    if #names == 0 then
        return claims, taken, preimages, false
    end
    local commons = { p = {}, l = {} } -- flag, profile -> what rows of one claim have in common
    local left, aside, expired = limit, 0, 0
    while true do
        ready:flush()
        local most = math.min(math.max(left + 1, next(full) and LIMIT.ASIDE_AT_ONCE or 0), 1000)
        local found, sizes
        if #names == 1 and not is_paused(names[1]) then
            found, sizes = next_in_one(names[1], most)
        end
        if not found then
            local lanes = lanes_for(names, tasks)
            if #lanes == 0 then
                return claims, taken, preimages, false
            end
            found, sizes = next_ready(lanes, most)
        end
        local ids, flags, slow = {}, {}, {}
        for i = 1, #found do
            local at = type(sizes) == 'number' and sizes or sizes[found[i]]
            ids[i] = text(found[i], at + 15)
            flags[i] = text(found[i], at + 14, at + 14)
            if flags[i] == 's' then
                slow[#slow + 1] = ids[i]
            end
        end
        local kept = read_many(K.jobs, ids)
        local lined = read_ahead_to_line(ids, flags, kept)
        if #slow > 1 then
            for i = 1, #found do
                if flags[i] == 's' and rows[ids[i]] == nil then
                    tickets.rows[ids[i]] = kept[i]
                end
            end
            local keys = read_ahead_to_write(slow)
            if #keys > 1 then
                hash(K.entries):prefetch(keys)
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
            local flag = not rows[id] and flags[i] or 's'
            if flag == 'l' and not is_head(id, lined[i]) then
                flag = 's'
            end
            local row
            local profile = flag ~= 's' and profile_of_plain(ticket, flag)
            if not profile then
                flag = 's'
                if rows[id] == nil then
                    tickets.rows[id] = ticket
                end
                row = get_row(id)
                profile = row and row.profile
            end
            if row == false or (row and (row[ROW.state] ~= STATE.READY or in_lane(row) ~= member)) then
                damage('ready') -- it is not there where it stands
                ready:drop(member)
            elseif not tasks[profile[PROFILE.task]] then
                aside = aside + 1
                lay_aside(row or get_row(id), full[profile[PROFILE.task]])
            elseif left == 0 then
                outcome = 'more'
                break
            elseif flag ~= 's' then
                local common = commons[flag][profile]
                if not common then
                    local ttl, way = profile[PROFILE.result_ttl_us], flag == 'l' and WAY.LINED or WAY.PLAIN
                    common = { 0, cmsgpack.pack(instance, turn, NOW, way, profile[PROFILE.queue], ttl, 1) }
                    commons[flag][profile] = common
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
                local preimage = flag == 'l' and take_lined(id, fence, profile, ticket, lined[i])
                last = #claims
                if preimage then
                    preimages[#preimages + 1] = { id, { preimage } }
                    claims[last + 1] = { id, fence, ticket, 1, 0, 0, { preimage }, NOTHING, NOTHING }
                else
                    claims[last + 1], claims[last + 2], claims[last + 3] = id, fence, ticket
                end
                left = left - 1
            else
                write_plain()
                if row[ROW.expires_us] > 0 and row[ROW.expires_us] <= NOW then
                    expire_one(row)
                    expired = expired + 1
                    if expired == LIMIT.EXPIRED_PER_TURN then
                        outcome = 'more'
                        break
                    elseif row.extra[EXTRA.line] ~= '' or row[ROW.is_awaited] then
                        outcome = 'again' -- its line goes on with another, or somebody waited for its end
                        break
                    end
                else
                    local told = claim(row, instance, turn)
                    taken[#taken + 1], taken[#taken + 2] = id, told[2]
                    if #told[7] > 0 then
                        preimages[#preimages + 1] = { id, told[7] }
                    end
                    claims[#claims + 1] = told
                    left = left - 1
                end
            end
        end
        write_plain()
        if aside >= LIMIT.LAID_ASIDE_PER_TURN then
            outcome = 'more'
        end
        if outcome == 'more' or (not outcome and #found < most) then
            for _, its in pairs(commons) do
                for profile, common in pairs(its) do
                    count_jobs(profile[PROFILE.queue], STATE.READY, -common[1])
                    count_jobs(profile[PROFILE.queue], STATE.RUNNING, common[1])
                end
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
