-- claims: how a worker gets a job
-- of: jobs
-- keys: none
-- made: with the part before it

local function take(row, instance, turn)
    touch(row)
    if row[ROW.state] == STATE.READY then
        leave_lane(row)
    end
    move(row, EVENT.CLAIM, STATE.RUNNING)
    row[ROW.attempt] = row[ROW.attempt] + 1
    row[ROW.fence], row[ROW.instance], row[ROW.turn] = next_counter(), instance, turn
    row[ROW.started_us], row[ROW.progress], row[ROW.is_apart], row[ROW.has_planted] = NOW, false, false, false
    local name = row.extra[EXTRA.line]
    if name ~= '' then
        local line = line_of(name)
        if line[LINE.holder] ~= row.id then -- an ordered retry kept it
            members:drop(in_line(row))
            line[LINE.waiting] = line[LINE.waiting] - 1
        end
        line[LINE.holder], line[LINE.head] = row.id, ''
        lines:set(name, line)
    end
    if row.profile[PROFILE.unique_until] == UNTIL.STARTED then
        free_unique(row)
    end
end

-- Returns a claim: id, fence, ticket, attempt, lost, strayed, pre-images, input, positions.
local function claim_of(row, preimages)
    return {
        row.id, row[ROW.fence], row.ticket, row[ROW.attempt], row[ROW.lost], row[ROW.strayed_us], preimages,
        row[ROW.input] and { row[ROW.input] } or NOTHING, row[ROW.positions],
    }
end

-- Hands a job out: next fence, attempt + 1, intents (L3).
local function claim(row, instance, turn)
    take(row, instance, turn)
    local owner, preimages = owner_of(row), {}
    for _, key in ipairs(row.extra[EXTRA.writes]) do
        if is_here(key) then
            local entry = cells_plant(owner, key)
            if entry and row.profile[PROFILE.wants_preimage] then
                preimages[#preimages + 1] = { key, entry[1], entry[2] }
            end
        end
    end
    return claim_of(row, preimages)
end

-- Lets a job wait apart that this worker cannot have: it does not know its task, or, if it is known, has no room for it.
local function lay_aside(row, is_known)
    touch(row)
    leave_lane(row)
    strays:drop(row.number8 .. row.id)
    row[ROW.is_apart] = true
    if row[ROW.strayed_us] == 0 and not is_known then
        row[ROW.strayed_us] = row[ROW.ready_us]
    end
    ready:add(in_lane(row))
    if row[ROW.strayed_us] > 0 and text(row[ROW.reason], 1, 10) ~= 'unroutable' then
        strays:add(row.number8 .. row.id, row[ROW.strayed_us])
    end
end

-- Begins a scope, or a lock whose line is free. Returns its fence ('': it stands in line) and a refusal.
local function open_scope(id, blob, instance)
    local admitted = admit(id, blob)
    local row = get_row(admitted[1])
    local kind = profile_of(text(blob, 3, 2 + struct.unpack('>I2', blob)))[PROFILE.kind]
    if admitted[5] ~= '' or row.profile[PROFILE.kind] ~= kind then
        return '', REFUSAL.ID_CONFLICT
    end
    if FINAL[row[ROW.state]] or (row[ROW.instance] ~= '' and row[ROW.instance] ~= instance) then
        return '', REFUSAL.LEASE_LOST
    end
    touch(row)
    if row[ROW.asker] ~= instance then
        if row[ROW.asker] ~= '' then
            asked:drop(sized(row[ROW.asker]) .. row.number8 .. id)
        end
        row[ROW.asker] = instance
        asked:add(sized(instance) .. row.number8 .. id)
    end
    if row[ROW.state] == STATE.READY then
        take(row, instance, 0)
        for _, key in ipairs(row.extra[EXTRA.writes]) do
            if is_here(key) then
                cells_plant(owner_of(row), key)
            end
        end
    end
    return row[ROW.state] == STATE.RUNNING and row[ROW.fence] or '', ''
end
