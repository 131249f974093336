-- jobs: the jobs of a partition: their rows, how they change, and what they say to other partitions
-- keys: asked directory ended expiry far intents lines members mixed offers strays
-- made: when it is asked for

local lines = hash(K.lines)
local directory = hash(K.directory)
local expiry = index(K.expiry)
local members = index(K.members)
local mixed = index(K.mixed)
local far = index(K.far)
local strays = index(K.strays)
local offers = index(K.offers)
local asked = index(K.asked)
local ended = index(K.ended)
local begun, is_telling, told_so_many = {}, false, 0 -- see tell_on
local WHOEVER = '\254' -- holds a line of which nobody knows yet who does: no job's id has this byte
local are_lines_lost = false -- some were met that had been written over
local elsewhere = {} -- name -> the partition it belongs to, of names that do not belong here
local NO_EXTRA = { '', NOTHING, NOTHING, '', NOTHING, NOTHING, 0, 0, 0, NOTHING }
local DEFAULT = {
    STATE.BLOCKED, '', 0, '', 0, 0, WAY.OTHER, '', 0, 0, -- state .. attempt
    0, 0, false, 0, 0, 0, 0, 0, -- ended_us .. joined
    false, 0, 0, '', false, '', false, false, false, NOTHING, 0, NOTHING, NOTHING, false, NOTHING, NOTHING, false, false,
}

local function learn(homes)
    for i = 1, #homes, 2 do
        elsewhere[homes[i]] = homes[i + 1]
    end
end

-- What was enqueued: a mark of its way (plain, lined, some other), created, due, number; and of the client: size and text of profile, extra, meta; payload.
local function ticket_of(mark, created, due_us, number, blob)
    local number8 = struct.pack('>I8', number)
    return mark .. struct.pack('>I8I8', created, due_us) .. number8 .. blob .. text(number8, 7)
end

local EXTRAS = { __index = NO_EXTRA }

-- Takes what was enqueued into a row. Returns when it is due; nil: it was written over.
local function take_ticket(row, ticket)
    local last = #ticket - 2
    if last < 35 then
        return nil
    end
    local created, due_us, number, size = struct.unpack('>I8I8I8I2', ticket, 2)
    local at = 28 + size
    row.ticket, row.created, row.number = ticket, created, number
    row.number8 = text(ticket, 18, 25)
    row.profile = at + 3 <= last and profile_of(text(ticket, 28, at - 1))
    if not row.profile then
        return nil
    end
    size = struct.unpack('>I4', ticket, at)
    at = at + 4
    row.meta_at = at + size
    if row.meta_at + 3 > last or row.meta_at + 3 + struct.unpack('>I4', ticket, row.meta_at) > last then
        return nil
    end
    if size > 0 then
        local extra = read_packed(text(ticket, at, at + size - 1), IS_EXTRA, 'a job')
        if not extra then
            return nil
        end
        row.extra = setmetatable(extra, EXTRAS)
        learn(row.extra[EXTRA.homes])
    else
        row.extra = NO_EXTRA
    end
    return due_us
end

-- A row's fields have their places from the start: a table that grows is laid out anew each time.
local function laid_out(id, is_read, ...)
    return is_read and {
        id = id, width = select('#', ...), flag = 's', ticket = false, created = false, number = false, number8 = false, profile = false, extra = false,
        meta_at = false, is_changed = false, holder = false, ...
    }
end

-- What changes of a job; false: it was written over.
local function row_of_dyn(id, dyn)
    local width, from = (byte(dyn) or 0) - 144, 2
    if width == 76 and #dyn > 3 then -- an array of 16 or more: its size is told in two bytes
        width, from = byte(dyn, 2) * 256 + byte(dyn, 3), 4
    end
    if width < 1 or width > #DEFAULT then
        return false
    end
    local row = laid_out(id, pcall(cmsgpack.unpack, text(dyn, from, -4)))
    return row and row.width == width and IS_ROW(row) and row
end

-- Returns a job; nil: it was written over.
local function make_row(id, ticket, dyn)
    local row = dyn and row_of_dyn(id, dyn) or (not dyn and laid_out(id, true))
    local due_us = row and take_ticket(row, ticket)
    if not due_us or byte(ticket) == 120 then -- 'x': it was before
        return nil
    end
    for i = 1, #DEFAULT do
        if row[i] == nil then
            row[i] = DEFAULT[i]
        end
    end
    if not dyn or row[ROW.way] ~= WAY.OTHER then
        row.flag = text(ticket, 1, 1)
        row[ROW.due_us], row[ROW.place], row[ROW.number] = due_us, row[ROW.place] > 0 and row[ROW.place] or row.number, row.number
        row[ROW.joined] = row.flag == 'l' and row.number or 0
        if not dyn then
            row[ROW.state] = due_us > row.created and STATE.SCHEDULED or STATE.READY
            row[ROW.ready_us] = row.created
        end
    end
    return row
end

-- Returns a job, or false.
local function get_row(id)
    local row = rows[id]
    if row == nil then
        local ticket = tickets:get(id)
        row = ticket and (make_row(id, ticket, dyns:get(id)) or dead_letter(id, ticket, dyns:get(id)))
        rows[id] = row
    end
    return row
end

-- A job that was written over (`is_unreadable`: says a client) never runs: it fails, and keeps its bytes in its meta. What is known of it yet is let go of.
local function dead_letter(id, ticket, dyn, is_unreadable)
    damage('job ' .. id)
    local was = dyn and row_of_dyn(id, dyn) or NOTHING
    local row = laid_out(id, true, unpack(DEFAULT))
    local due_us = take_ticket(row, ticket)
    if not due_us or (is_unreadable and byte(ticket) ~= 120) then
        local number = was[ROW.number] or next_number()
        local meta = '\193' .. ticket
        row = laid_out(id, true, unpack(DEFAULT))
        take_ticket(row, ticket_of('x', NOW, 0, number, struct.pack('>I2c0I4I4c0', #USUAL_PROFILE, USUAL_PROFILE, 0, #meta, meta)))
        note_number(id, number)
    elseif byte(ticket) ~= 120 then
        if byte(ticket) ~= 115 then
            row.flag = text(ticket, 1, 1)
            due:drop(in_due(row))
            row[ROW.place] = row.number
            ready:drop(in_lane(row))
            row.flag = 's'
        end
        row.ticket = 's' .. text(ticket, 2)
    elseif FINAL[was[ROW.state] or 0] then
        for i = 1, #DEFAULT do
            row[i] = was[i] == nil and DEFAULT[i] or was[i]
        end
        return row
    end
    row.is_changed = true
    changed_rows[#changed_rows + 1] = row
    rows[id] = row
    tickets:set(id, row.ticket)
    leave(row)
    local state = was[ROW.state]
    if state and not row.profile.is_scope then
        count_jobs(was[ROW.queue] ~= '' and was[ROW.queue] or row.profile[PROFILE.queue], state, -1)
    end
    if state == STATE.RUNNING then
        let_claims_go(was[ROW.instance], was[ROW.turn], 1)
        cancels:drop(sized(was[ROW.instance]) .. was[ROW.fence] .. id)
    end
    row[ROW.state], row[ROW.fence], row[ROW.attempt], row[ROW.lost] =
        STATE.FAILED, was[ROW.fence] or '', was[ROW.attempt] or 0, was[ROW.lost] or 0
    row[ROW.error], row[ROW.reason], row[ROW.ended_us] = CORRUPT, WHY_CORRUPT, NOW
    row[ROW.keep_until_us] = NOW + row.profile[PROFILE.failed_ttl_us]
    row[ROW.is_awaited] = true
    local is_counted = byte(ticket) == 120 and was[ROW.way] ~= WAY.OTHER -- failed before, and since then taken for a plain one
    if not (is_counted or row.profile.is_scope) then
        count_jobs(row.profile[PROFILE.queue], STATE.FAILED, 1)
    end
    ended:add(row.number8 .. id, row[ROW.keep_until_us])
    free_unique(row)
    cells_let_stand({ M.index, id, string.rep('f', 16) }, NOW + LIMIT.INTENT_GRACE_US)
    begin_telling(row, 0)
    return row
end

local function read_ahead(ids)
    tickets:prefetch(ids)
    dyns:prefetch(ids)
    if #ids < 2 then
        return
    end
    local names = {}
    for i = 1, #ids do
        local row = get_row(ids[i])
        local name = row and row.extra[EXTRA.line] or ''
        if name ~= '' then
            names[#names + 1] = name
        end
    end
    lines:prefetch(names)
end

-- Reads jobs that are going to be claimed or settled, and the places of the keys that they write.
local function read_ahead_to_write(ids)
    read_ahead(ids)
    local keys = {}
    for i = 1, #ids do
        local row = get_row(ids[i])
        local writes = row and row.extra[EXTRA.writes] or NOTHING
        for j = 1, #writes do
            keys[#keys + 1] = writes[j]
        end
    end
    if #keys > 1 then
        hash(K.intents):prefetch(keys)
    end
    return keys
end

local function in_lane(row)
    local lane = row.profile.lane
    if row[ROW.is_apart] then
        lane = lane_of(row.profile[PROFILE.queue], row.profile[PROFILE.task])
    end
    return lane .. row.profile.rank .. struct.pack('>I8', row[ROW.place]) .. row.flag .. row.id
end

local function in_due(row)
    if row.flag == 'p' then
        return row.number8 .. 'p' .. row.profile.rank .. row.profile.lane .. row.id
    end
    return row.number8 .. 's' .. row.id
end

-- A row is about to change: from here on it is not plain, and lies where such rows lie.
local function touch(row)
    if row.is_changed then
        return
    end
    row.is_changed = true
    changed_rows[#changed_rows + 1] = row
    if row.flag ~= 's' then
        local state = row[ROW.state]
        if state == STATE.READY then
            ready:drop(in_lane(row))
        elseif state == STATE.SCHEDULED then
            due:drop(in_due(row))
        end
        row.flag = 's'
        if state == STATE.READY then
            ready:add(in_lane(row))
        elseif state == STATE.SCHEDULED then
            due:add(in_due(row), row[ROW.due_us])
        end
    end
end

local function pack_row(row)
    local last = #DEFAULT
    while row[last] == DEFAULT[last] do
        last = last - 1
    end
    row[ROW.number], row[ROW.way] = row.number, WAY.OTHER
    return cmsgpack.pack({ unpack(row, 1, last) }) .. ending_of(row.number8)
end

at_end(function()
    for i = 1, #changed_rows do
        local row = changed_rows[i]
        if rows[row.id] == row then
            dyns:set(row.id, pack_row(row))
        end
    end
end)

local function is_waiting_to_expire(row)
    return row[ROW.expires_us] > 0 and WAITING[row[ROW.state]]
end

local function move(row, event, state)
    local was = row[ROW.state]
    if not MOVES[was .. event .. state] then
        error('no job goes from ' .. was .. ' to ' .. state .. ' by ' .. event)
    end
    touch(row)
    if not row.profile.is_scope then
        local queue = row.profile[PROFILE.queue]
        count_jobs(queue, was, -1)
        count_jobs(queue, state, 1)
    end
    if was == STATE.SCHEDULED then
        due:drop(in_due(row))
    elseif was == STATE.RUNNING then
        let_claims_go(row.holder, row[ROW.turn], 1)
    elseif was == STATE.BLOCKED and row[ROW.registered_us] > 0 then
        far:drop(row.number8 .. row.id)
    elseif was == STATE.READY then
        if row[ROW.is_apart] then
            strays:drop(row.number8 .. row.id)
        end
        if row.profile[PROFILE.kind] == KIND.LOCK then
            offers:drop(row.number8 .. row.id)
        end
    end
    if row[ROW.expires_us] > 0 and WAITING[was] ~= WAITING[state] then
        if WAITING[was] then
            expiry:drop(row.number8 .. row.id)
        else
            expiry:add(row.number8 .. row.id, row[ROW.expires_us])
        end
    end
    row[ROW.state] = state
    if state == STATE.SCHEDULED then
        due:add(in_due(row), row[ROW.due_us])
    end
end

local function forget_number(id, number)
    page_at(number)[2][id] = true
end

-- == the outbox
local function post(to, ...)
    outbox:add(next_counter() .. cmsgpack.pack({ to, ... }))
end

-- Returns the names of each other partition, by partition.
local function by_partition(names)
    local there, order = {}, {}
    for i = 1, #names do
        local to = elsewhere[names[i]]
        if to then
            if not there[to] then
                there[to] = {}
                order[#order + 1] = to
            end
            table.insert(there[to], names[i])
        end
    end
    table.sort(order)
    return order, there
end

-- == small things
local function merge_positions(positions, more)
    if #more == 0 then
        return positions
    end
    local merged = {}
    for i = 1, #positions do
        merged[i] = positions[i]
    end
    for i = 1, #more, 2 do
        local at
        for j = 1, #merged, 2 do
            if merged[j] == more[i] then
                at = j
            end
        end
        if at then
            merged[at + 1] = math.max(merged[at + 1], more[i + 1])
        else
            merged[#merged + 1] = more[i]
            merged[#merged + 1] = more[i + 1]
        end
    end
    return merged
end

local function without(list, value)
    local kept = {}
    for i = 1, #list do
        if list[i] ~= value then
            kept[#kept + 1] = list[i]
        end
    end
    return kept
end

-- Returns those of a list of (name, number) that a question is answered with yes for.
local function of_names(pairs_, is_wanted)
    if #pairs_ == 0 then
        return NOTHING
    end
    local wanted = {}
    for i = 1, #pairs_ do
        if is_wanted(pairs_[i][1]) then
            wanted[#wanted + 1] = pairs_[i]
        end
    end
    return wanted
end

local function is_here(name)
    return not elsewhere[name]
end

local function owner_of(row)
    return { M.index, row.id, row[ROW.fence] }
end

-- == unique keys
local function hold_unique(row)
    local unique = row.extra[EXTRA.unique]
    if unique ~= '' and is_here(unique) then
        directory:set(unique, { row.id, M.index })
    end
end

local function free_directory(name, job, sender)
    local entry = directory:get(name)
    if entry and entry[1] == job and (entry[2] == sender or sender < 0) then
        directory:del(name)
    end
end

local function free_name(name, job)
    if is_here(name) then
        free_directory(name, job, M.index)
    else
        post(elsewhere[name], 'free_unique', name, job)
    end
end

local function free_unique(row)
    if row.extra[EXTRA.unique] ~= '' then
        free_name(row.extra[EXTRA.unique], row.id)
    end
end

local function has_right(job, unique)
    local row = get_row(job)
    if not row or row.extra[EXTRA.unique] ~= unique then
        return false
    end
    local state = row[ROW.state]
    return WAITING[state] or (row.profile[PROFILE.unique_until] == UNTIL.FINISHED and not FINAL[state])
end

-- A job gives way to a newer twin.
local function supersede(job, by)
    local row = get_row(job)
    if row and WAITING[row[ROW.state]] then
        cancel(row, string.format(REASON.SUPERSEDED, by))
    end
end

local function meet_twin(unique, job, home, twin)
    if has_right(twin, unique) then
        if home == M.index then
            supersede(job, twin)
        else
            post(home, 'supersede', job, twin)
        end
    elseif get_row(twin) then
        if is_here(unique) then
            retake(unique, job, home, twin)
        else
            post(elsewhere[unique], 'hold_unique', unique, job, home, twin)
        end
    end
end

-- Lets a job that waits again have its unique key, or asks whoever has it; and that one is asked whether it has a right to it.
local function retake(unique, job, home, replacing)
    local entry = directory:get(unique)
    if not entry or entry[1] == job or entry[1] == replacing then
        directory:set(unique, { job, home })
    elseif entry[2] == M.index then
        meet_twin(unique, job, home, entry[1])
    else
        post(entry[2], 'meet_twin', unique, job, home, entry[1])
    end
end

-- It waits again: it has its unique key, unless a newer twin turns out to have a right to it.
local function hold_again(row)
    local unique = row.extra[EXTRA.unique]
    if unique == '' then
        return
    end
    if is_here(unique) then
        retake(unique, row.id, M.index, '')
    else
        post(elsewhere[unique], 'hold_unique', unique, row.id, M.index, '')
    end
end
