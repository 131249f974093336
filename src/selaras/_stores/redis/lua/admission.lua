-- admission: how a job comes in
-- of: jobs
-- keys: none
-- made: with the part before it

local function begin(row)
    local extra = row.extra
    row[ROW.due_us] = extra[EXTRA.due_us] > 0 and extra[EXTRA.due_us] or NOW + extra[EXTRA.delay_us]
    if is_waiting_to_expire(row) then
        expiry:drop(row.number8 .. row.id)
    end
    row[ROW.expires_us] = extra[EXTRA.expires_in_us] > 0 and NOW + extra[EXTRA.expires_in_us] or 0
    if row[ROW.expires_us] > 0 then
        expiry:add(row.number8 .. row.id, row[ROW.expires_us])
    end
    row[ROW.positions] = merge_positions(row[ROW.positions], extra[EXTRA.positions])
    wait_for_parents(row)
end

local function wait_for_parents(row)
    local parents = row.extra[EXTRA.parents]
    if #parents > 0 then
        local waits = { unpack(row[ROW.waits]) }
        row[ROW.waits] = waits
        for _, parent in ipairs(parents) do
            waits[wait_of(row, parent[1], parent[2]) or #waits + 1] = parent
        end
    end
    row[ROW.registered_us] = 0
    if waits_elsewhere(row) then
        row[ROW.registered_us] = NOW
        far:add(row.number8 .. row.id, NOW)
    end
    for _, parent in ipairs(parents) do
        register(parent[1], row.id, parent[2], M.index, parent[3])
    end
    if row[ROW.state] == STATE.BLOCKED and #row[ROW.waits] == 0 then
        enter(row, EVENT.UNBLOCK)
    end
end

local function payload_of(row)
    return text(row.ticket, row.meta_at + 4 + struct.unpack('>I4', row.ticket, row.meta_at), -3)
end

local function new_row(id, blob)
    local row = laid_out(id, true, unpack(DEFAULT))
    take_ticket(row, ticket_of('s', NOW, 0, M.numbers + 1, blob))
    return row
end

local function admission(id, row, created, replaced, refusal)
    return { id, row and row[ROW.state] or STATE.BLOCKED, created and 1 or 0, replaced and 1 or 0, refusal or '' }
end

-- Enqueues one job. Returns its admission: id, state, created, replaced, refusal.
local function admit(id, blob)
    local twin = get_row(id)
    local new = new_row(id, blob) -- with the next number, taken when it is let in
    if twin then
        local is_same = twin.profile[PROFILE.task] == new.profile[PROFILE.task] and payload_of(twin) == payload_of(new)
        return admission(id, twin, false, false, not is_same and REFUSAL.ID_CONFLICT)
    end
    local unique = new.extra[EXTRA.unique]
    local entry = unique ~= '' and directory:get(unique)
    if entry then
        twin = get_row(entry[1])
        if twin and twin.extra[EXTRA.unique] == unique then
            if new.profile[PROFILE.on_conflict] == CONFLICT.KEEP or not WAITING[twin[ROW.state]] then
                return admission(twin.id, twin)
            end
            leave(twin)
            local was = twin[ROW.state]
            if was == STATE.SCHEDULED then
                due:drop(in_due(twin))
            elseif was == STATE.READY then
                strays:drop(twin.number8 .. twin.id)
            elseif was == STATE.BLOCKED and twin[ROW.registered_us] > 0 then
                far:drop(twin.number8 .. twin.id)
            end
            count_jobs(twin.profile[PROFILE.queue], was, -1)
            take_ticket(twin, ticket_of('s', twin.created, 0, twin.number, blob))
            tickets:set(twin.id, twin.ticket)
            count_jobs(twin.profile[PROFILE.queue], STATE.BLOCKED, 1)
            twin[ROW.state], twin[ROW.joined], twin[ROW.is_apart], twin[ROW.strayed_us] = STATE.BLOCKED, 0, false, 0
            begin(twin)
            return admission(twin.id, twin, false, true)
        end
        if entry[2] ~= M.index then
            return admission(entry[1])
        end
    end
    local row = new
    local number = next_number()
    rows[id] = row
    tickets:set(id, row.ticket)
    touch(row)
    note_number(id, number)
    if not row.profile.is_scope then
        count_jobs(row.profile[PROFILE.queue], STATE.BLOCKED, 1)
    end
    hold_unique(row)
    begin(row)
    return admission(id, row, true)
end
