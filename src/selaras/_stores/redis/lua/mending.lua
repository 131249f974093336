-- mending: looks through all jobs and lines, a piece at a call, once something was met that nobody here wrote
-- uses: log, rows, cells, jobs
-- keys: meta
-- made: with the part before it
--
-- A job's row says where it must stand. What stands somewhere and should not is dropped by whoever meets it; what should
-- and does not is put back here: some at each call, and all soon once something was met that nobody here wrote. Fields
-- `look` and `mend` in the hash `meta` say how far it has come.

local function stand(set, member, score)
    if not set:has(member) then
        set:add(member, score)
        damage('an index')
    end
end

-- A running job is listed by its turn, or by the instance that asked for it: so it is found when its worker is lost.
local function mend_running(row)
    local instance, turn = row[ROW.instance], row[ROW.turn]
    if not holders:get(instance) then
        lose(row, REASON.LOST)
    elseif turn == 0 then
        stand(asked, sized(row[ROW.asker]) .. row.number8 .. row.id)
    else
        local field, listed = turn_field(instance, turn), false
        local told = turns:get(field)
        local claims = told and told[TOLD.claims] or {}
        for i = 1, #claims, 2 do
            listed = listed or (claims[i] == row.id and claims[i + 1] == row[ROW.fence])
        end
        call('ZADD', K.batches, 0, field)
        if not listed then
            claims[#claims + 1], claims[#claims + 2] = row.id, row[ROW.fence]
            if not told then
                count_up(K.left, field, 1, 1)
            end
            turns:set(field, { told and told[TOLD.position] or 0, told and told[TOLD.settled] or {}, claims, told and told[TOLD.preimages] or {} })
        end
    end
end

local function mend_line_of(row)
    local name = row.extra[EXTRA.line]
    local line = name ~= '' and lines:get(name)
    local holds = line and line[LINE.holder] == row.id
    if name == '' or (holds and row.flag == 's') then -- an ordered retry kept it
        return
    end
    stand(members, in_line(row))
    if not line or holds then -- whoever else held it would have said so, if he had come before
        damage('a line')
        lines:set(name, mend_line(name, holds and '' or WHOEVER))
        arrange(name)
    end
end

-- A running job holds its line, whatever that says.
local function mend_held_by(row)
    local name = row.extra[EXTRA.line]
    local line = name ~= '' and lines:get(name)
    if name ~= '' and not (line and line[LINE.holder] == row.id) then
        damage('a line')
        lines:set(name, mend_line(name, row.id))
        arrange(name)
    end
end

local function mend_job(id)
    local row = get_row(id)
    if not row then
        return
    end
    if not dyns:get(id) and ended:has(row.number8 .. id) then -- what it came to is lost, and it must not run again
        row = dead_letter(id, tickets:get(id), nil, true)
        rows[id] = row
    end
    local state, at = row[ROW.state], row.number8 .. id
    local names = call('HGET', K.pages, math.floor(row.number / LIMIT.PAGE)) or ''
    if not string.find(names, sized(id), 1, true) then
        note_number(id, row.number)
    end
    if row[ROW.expires_us] > 0 and WAITING[state] then
        stand(expiry, at, row[ROW.expires_us])
    end
    if FINAL[state] then
        stand(ended, at, row[ROW.keep_until_us])
    elseif state == STATE.SCHEDULED then
        stand(due, in_due(row), row[ROW.due_us])
    elseif state == STATE.RUNNING then
        mend_running(row)
        if row[ROW.state] == STATE.RUNNING then
            mend_held_by(row)
        end
    elseif state == STATE.BLOCKED then
        for _, wait in ipairs({ unpack(row[ROW.waits]) }) do
            local noted = wait[3] == M.index and call('HGET', K.edges, edge_field(wait[1], id, wait[2]))
            if wait[3] == M.index and not (noted and call('ZSCORE', K.dependents, noted)) then
                damage('dependents')
                register(wait[1], id, wait[2], M.index, wait[3])
            end
        end
    else
        mend_line_of(row)
        if row[ROW.state] == STATE.READY and not row.profile.is_scope then
            stand(ready, in_lane(row))
            wake(row.profile[PROFILE.queue])
        end
    end
end

local function mend_line_by_name(name)
    local line = lines:get(name)
    if not line or (line[LINE.holder] == WHOEVER and are_lines_lost) then
        return
    end
    local function stands(id, is_there)
        local row = id ~= '' and get_row(id)
        return id == '' or (row and row.extra[EXTRA.line] == name and is_there(row[ROW.state]))
    end
    local is_held = stands(line[LINE.holder], function(state)
        return not FINAL[state]
    end)
    local is_headed = stands(line[LINE.head], function(state)
        return state == STATE.READY
    end)
    local prefix = sized(name)
    members:flush()
    local waiting = call('ZLEXCOUNT', K.members, '[' .. prefix, '(' .. prefix .. '\255')
    if not (is_held and is_headed and line[LINE.waiting] == waiting) then
        lines:set(name, mend_line(name, is_held and line[LINE.holder] or ''))
    end
    arrange(name)
end

-- How many are ready in a queue its lanes say, whatever became of a job that could not say where it stood.
local function recount_ready()
    ready:flush()
    local counts = call('HGETALL', K.counts)
    for i = 1, #counts, 2 do
        local field, said = counts[i], tonumber(counts[i + 1]) or 0
        if byte(field) == 48 + STATE.READY then
            local queue = text(field, 2)
            local lanes = struct.pack('>I2c0', #queue, queue)
            local standing = call('ZLEXCOUNT', K.ready, '[' .. lanes, '(' .. lanes .. '\255')
            count_jobs(queue, STATE.READY, standing - said - (counted[field] or 0))
        end
    end
end

-- Looks at some of the marks. Where one is none, or they are gone, they are lost.
local function mend_marks()
    local is_sound = let_set_be(K.marks, 0)
    if is_sound then
        local came = tonumber(call('HGET', K.meta, 'sweep:marks') or 0) or 0
        local found = call('ZRANGE', K.marks, string.format('%d', came), string.format('%d', came + LIMIT.MENDED_AT_ONCE - 1), 'WITHSCORES')
        for i = 1, #found, 2 do
            local mark = found[i]
            local is_named = mark == ABSENT or string.find(mark, '^[' .. SCOPE.TAG .. SCOPE.FAMILY .. ']:')
            if not (is_named and is_mark(tonumber(found[i + 1]))) then
                is_sound = false
                call('ZREM', K.marks, mark)
                call('ZADD', K.marks, 0, ABSENT)
            end
        end
        local at = #found == 2 * LIMIT.MENDED_AT_ONCE and came + LIMIT.MENDED_AT_ONCE or 0
        if at ~= came then
            call('HSET', K.meta, 'sweep:marks', string.format('%d', at))
        end
    end
    if not is_sound then
        cells_lose_marks()
    end
end

local function mend_intents_on(key)
    cells_let_forgotten_fall(key, function(id)
        local row = get_row(id)
        return not row or FINAL[row[ROW.state]]
    end)
end

-- What is looked through, one after the other.
local LOOKED_THROUGH = {
    jobs = { rows = K.jobs, mend = mend_job, after = 'lines' },
    lines = { rows = K.lines, mend = mend_line_by_name, after = 'intents' },
    intents = { rows = K.intents, mend = mend_intents_on },
}

-- Goes on with it. Returns whether there is more that is urgent.
local function mend_some()
    local looked = call('HMGET', K.meta, 'mend', 'look', 'lines_lost')
    local field = looked[1] and 'mend' or 'look'
    local stage, cursor = string.match(looked[1] or looked[2] or '', '^(%a+) (%d+)$')
    if not LOOKED_THROUGH[stage] then
        stage, cursor = 'jobs', '0'
    end
    if looked[3] and (stage ~= 'jobs' or cursor == '0') then -- whoever holds a line must be looked for first
        field, stage, cursor = 'mend', 'jobs', '0'
        call('HDEL', K.meta, 'lines_lost')
    end
    local count = looked[1] and LIMIT.MENDED_AT_ONCE or LIMIT.LOOKED_AT
    local through = LOOKED_THROUGH[stage]
    local page = call('HSCAN', through.rows, cursor, 'COUNT', count)
    for i = 1, #page[2], 2 do
        if page[2][i] ~= ABSENT then
            through.mend(page[2][i])
        end
    end
    if page[1] ~= '0' then
        call('HSET', K.meta, field, stage .. ' ' .. page[1])
    elseif through.after then
        call('HSET', K.meta, field, through.after .. ' 0')
    else
        call('HDEL', K.meta, field)
        recount_ready()
        if field == 'mend' then
            is_damaged = false
        end
        return is_damaged ~= false
    end
    return field == 'mend'
end
