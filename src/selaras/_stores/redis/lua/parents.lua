-- parents: jobs that wait for others: who is told how a job stands, and how the last one lets a child go
-- of: jobs
-- keys: dependents edges tellings
-- made: with the part before it

local function edge_field(parent, child, edge)
    return sized(parent) .. sized(child) .. edge
end

-- Notes a dependent at its parent, in the order of coming. A dependent that comes again keeps its place.
local function depend(parent, child, edge, home)
    local field = edge_field(parent, child, edge)
    local kept = call('HGET', K.edges, field)
    local entry = cmsgpack.pack({ child, edge, home })
    if kept and #kept > #parent + 12 and text(kept, 1, 4 + #parent) == sized(parent) then
        call('ZREM', K.dependents, kept)
        kept = text(kept, 1, 4 + #parent + 8) .. entry
    else
        M.dependents = M.dependents + 1
        kept = sized(parent) .. struct.pack('>I8', M.dependents) .. entry
    end
    call('HSET', K.edges, field, kept)
    call('ZADD', K.dependents, 0, kept)
end

-- Per partition, the position that a parent's effects reached.
local function seen_by(row)
    local seen = { M.index, M.position }
    local positions = row[ROW.positions]
    for i = 1, #positions, 2 do
        if positions[i] ~= M.index then
            seen[#seen + 1] = positions[i]
            seen[#seen + 1] = positions[i + 1]
        end
    end
    return seen
end

local function tell_child(parent, row, child, edge, home)
    local state = row and row[ROW.state] or 0
    local value = row and edge == EDGE.VALUE and row[ROW.result] or false
    local positions = row and seen_by(row) or NOTHING
    if home ~= M.index then
        post(home, 'parted', parent, child, edge, state, value, positions)
    else
        part(parent, child, edge, state, value, positions)
    end
end

-- Says whether a dependent goes on waiting for a parent in this state: one that failed may be retried by hand.
local function waits_on(state, edge)
    return not FINAL[state] or (state == STATE.FAILED and (edge == EDGE.AFTER or edge == EDGE.VALUE))
end

-- Tells some of those that wait for a job how it stands: of `one`, (job, the last dependent that is meant, 1 if it is not
-- known any more). Returns whether these were all.
local function tell_some(one)
    local id, row = one[1], one[3] == 0 and get_row(one[1]) or nil
    local prefix, most = sized(id), LIMIT.TOLD_PER_STEP - told_so_many
    local found = call(
        'ZRANGE', K.dependents, '[' .. prefix, '(' .. prefix .. struct.pack('>I8', one[2] + 1), 'BYLEX', 'LIMIT', 0, most + 1
    )
    local is_last = #found <= most
    found[most + 1] = nil
    local fields, ids, members = {}, {}, found
    found = {}
    for i = 1, #members do
        local entry = read_packed(text(members[i], #prefix + 9), IS_DEPENDENT, 'dependents')
        if entry then
            found[#found + 1] = entry
            fields[#fields + 1] = edge_field(id, entry[1], entry[2])
            if entry[3] == M.index then
                ids[#ids + 1] = entry[1]
            end
        end
    end
    call_many('HDEL', K.edges, fields)
    call_many('ZREM', K.dependents, members)
    for i = 1, #found do
        if row and waits_on(row[ROW.state], found[i][2]) then
            depend(id, found[i][1], found[i][2], found[i][3])
        end
    end
    read_ahead(ids)
    told_so_many = told_so_many + #found
    for i = 1, #found do
        tell_child(id, row, found[i][1], found[i][2], found[i][3])
    end
    return is_last
end

local function telling_field(one)
    return one[3] .. one[1] -- 0 or 1, and the job
end

-- Tells what was begun; with `goes_on` what earlier scripts have left, too. Ends that follow from it wait for their turn.
local function tell_on(goes_on)
    if is_telling then
        return
    end
    is_telling = true
    while told_so_many < LIMIT.TOLD_PER_STEP do
        local one, kept = begun[1], nil
        if not one and goes_on then
            kept = call('ZRANGE', K.tellings, 1, 1, 'WITHSCORES') -- the first is what makes the key be there
            one = kept[1] and { text(kept[1], 2), tonumber(kept[2]), text(kept[1], 1, 1) == '1' and 1 or 0 }
            if not one then
                M.tellings = #begun
            end
        end
        if not one then
            break
        end
        if tell_some(one) then
            M.tellings = M.tellings - 1
            if kept then
                call('ZREM', K.tellings, kept[1])
            else
                table.remove(begun, 1)
            end
        end
    end
    is_telling = false
end

-- Tells those that wait for a job how it stands, as many as this script may (L13).
local function begin_telling(row, gone)
    if not row[ROW.is_awaited] then
        return
    end
    if M.tellings > 0 then
        M.tellings = M.tellings - call('ZREM', K.tellings, '0' .. row.id, '1' .. row.id)
    end
    local first = under(K.dependents, sized(row.id), 1)[1]
    if first then
        M.dependents = M.dependents + 1 -- those that come later are not meant
        begun[#begun + 1] = { row.id, M.dependents, gone }
        M.tellings = M.tellings + 1
        tell_on(false)
    end
end

-- What this script could not tell is left to others.
at_end(function()
    for i = 1, #begun do
        call('ZADD', K.tellings, begun[i][2], telling_field(begun[i]))
    end
    begun = {}
end)

-- Whether not all who wait for a job were told how it stands: until then it is kept.
local function is_told_of(id)
    if M.tellings == 0 then
        return false
    end
    for i = 1, #begun do
        if begun[i][1] == id then
            return true
        end
    end
    return call('ZSCORE', K.tellings, '0' .. id) or call('ZSCORE', K.tellings, '1' .. id)
end

local function register(parent, child, edge, home, to)
    if to ~= M.index then
        post(to, 'register', parent, child, edge, home)
        return
    end
    local row = get_row(parent)
    local is_over = not row or FINAL[row[ROW.state]]
    if row and (not is_over or (row[ROW.state] == STATE.FAILED and (edge == EDGE.AFTER or edge == EDGE.VALUE))) then
        touch(row)
        row[ROW.is_awaited] = true
        depend(parent, child, edge, home)
    end
    if is_over then
        tell_child(parent, row, child, edge, home)
    end
end

local function wait_of(row, parent, edge)
    for i, wait in ipairs(row[ROW.waits]) do
        if wait[1] == parent and wait[2] == edge then
            return i
        end
    end
end

local function waits_elsewhere(row)
    for _, wait in ipairs(row[ROW.waits]) do
        if wait[3] ~= M.index then
            return true
        end
    end
    return false
end

-- A parent's end reaches its dependent. `state` 0: it is not known.
local function part(parent, child, edge, state, value, positions)
    local row = get_row(child)
    local at = row and row[ROW.state] == STATE.BLOCKED and wait_of(row, parent, edge)
    if not at then
        return
    end
    touch(row)
    local stuck = without(row[ROW.stuck], parent)
    local released = false
    if state == STATE.SUCCEEDED then
        released = true
    elseif state == STATE.FAILED then
        released = edge == EDGE.FINISHED or edge == EDGE.SCOPE
        if not released then
            stuck[#stuck + 1] = parent
        end
    elseif state == 0 or FINAL[state] then
        released = edge == EDGE.FINISHED
        if not released then
            row[ROW.stuck] = stuck
            local ended = NAMES_OF_STATES[state]
            if not ended then
                row[ROW.reason] = string.format(REASON.PARENT_GONE, parent)
            elseif edge == EDGE.SCOPE then -- its id is one that nobody was ever told
                row[ROW.reason] = REASON.ROLLED_BACK
            else
                row[ROW.reason] = string.format(REASON.PARENT_ENDED, parent, ended)
            end
            end_job(row, EVENT.CANCEL, STATE.CANCELLED)
            return
        end
    end
    row[ROW.stuck] = stuck
    row[ROW.reason] = stuck[1] and string.format(REASON.PARENT_FAILED, stuck[1]) or ''
    if not released then
        return
    end
    local waits = {}
    for i, wait in ipairs(row[ROW.waits]) do
        if i ~= at then
            waits[#waits + 1] = wait
        end
    end
    row[ROW.waits] = waits
    if row[ROW.registered_us] > 0 and not waits_elsewhere(row) then
        far:drop(row.number8 .. row.id)
        row[ROW.registered_us] = 0
    end
    if edge == EDGE.VALUE then
        row[ROW.input] = value
    end
    row[ROW.positions] = merge_positions(row[ROW.positions], positions)
    if #waits == 0 then
        enter(row, EVENT.UNBLOCK)
    end
end
