-- jobs: the jobs of a partition: admission, lines, claims, and what the end of an attempt sets in motion
-- keys: accepted asked batches cancels counts dependents directory due dyn edges ended expiry far holders idle jobs left lines members mixed offers outbox page_order pages queues ready strays tellings turns
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

-- == lines
local function line_of(name)
    local line = lines:get(name)
    if not line then
        line = { '', '', {}, 0 }
        lines:set(name, line)
    end
    return line
end

local function group_of(row)
    return row.profile.is_scope and '' or 'q' .. row.profile[PROFILE.queue]
end

local function in_line(row)
    return sized(row.extra[EXTRA.line]) .. sized(group_of(row)) .. row.profile.rank .. struct.pack('>I8', row[ROW.joined]) .. row.id
end

local function is_served(group)
    if group == '' then
        return true
    end
    local queue = text(group, 2)
    return queues:get('s' .. queue) and not is_paused(queue)
end

local function join_line(row)
    local line, group = line_of(row.extra[EXTRA.line]), group_of(row)
    members:add(in_line(row))
    line[LINE.waiting] = line[LINE.waiting] + 1
    local is_known = false
    for _, known in ipairs(line[LINE.groups]) do
        is_known = is_known or known == group
    end
    if not is_known then
        table.insert(line[LINE.groups], group)
        if #line[LINE.groups] > 1 then
            mixed:add(row.extra[EXTRA.line])
        end
    end
    return line
end

-- What is made of a line: those who wait in it say who they are.
local function mend_line(name, holder)
    members:flush()
    local line, prefix = { holder, '', {}, 0 }, sized(name)
    local upper, from = '(' .. prefix .. '\255', '[' .. prefix
    while true do
        local member = call('ZRANGE', K.members, from, upper, 'BYLEX', 'LIMIT', 0, 1)[1]
        if not member then
            break
        end
        local size = #member >= #prefix + 4 and struct.unpack('>I4', member, #prefix + 1)
        if not size or #member < #prefix + 4 + size + 14 then
            members:drop(member)
            from = '(' .. member
        else
            local group = text(member, #prefix + 5, #prefix + 4 + size)
            local its = prefix .. sized(group)
            table.insert(line[LINE.groups], group)
            line[LINE.waiting] = line[LINE.waiting] + call('ZLEXCOUNT', K.members, '[' .. its, '(' .. its .. '\255')
            local row = get_row(text(member, #its + 14))
            if row and row[ROW.state] == STATE.READY then
                line[LINE.head] = row.id
            end
            from = '(' .. its .. '\255'
        end
    end
    if #line[LINE.groups] > 1 then
        mixed:add(name)
    end
    if holder == WHOEVER and line[LINE.head] ~= '' then
        line[LINE.holder] = '' -- else none would be ready
    end
    return line
end

-- What is made of a line that was written over. Whoever waits in it runs once all jobs have been looked at: one may hold it.
local function mend_lost_line(name)
    if not are_lines_lost then
        are_lines_lost = true
        at_end(function()
            call('HSET', K.meta, 'lines_lost', 1)
            call('HSETNX', K.meta, 'mend', 'jobs 0')
        end)
    end
    return mend_line(name, WHOEVER)
end

-- The first member of a group in a line; one that is none of it goes.
local function first_of(name, prefix, line)
    while true do
        local member = under(K.members, prefix, 1)[1]
        if not member then
            return nil
        end
        local row = get_row(text(member, #prefix + 14))
        if row and row.extra[EXTRA.line] == name and (row[ROW.state] == STATE.HELD or row[ROW.state] == STATE.READY) then
            return member
        end
        damage('a line')
        members:drop(member)
        members:flush()
        line[LINE.waiting] = math.max(0, line[LINE.waiting] - 1)
    end
end

-- Returns the first member of a line that may run, else the first of all (P21): a seek for each queue in it.
local function first_in_line(name, line)
    if line[LINE.waiting] == 0 then
        if line[LINE.groups][2] then
            mixed:drop(name)
        end
        line[LINE.groups] = {}
        return nil
    end
    members:flush()
    local only = line[LINE.groups][1]
    if only and not line[LINE.groups][2] then
        local prefix = sized(name) .. sized(only)
        local member = first_of(name, prefix, line)
        if not member then
            line[LINE.groups] = {}
        end
        return member and text(member, #prefix + 14)
    end
    local best, best_rank, best_served
    local left = {}
    for _, group in ipairs(line[LINE.groups]) do
        local prefix = sized(name) .. sized(group)
        local member = first_of(name, prefix, line)
        if member then
            left[#left + 1] = group
            local rank, served = text(member, #prefix + 1), is_served(group)
            if not best or (served and not best_served) or (served == best_served and is_before(rank, best_rank)) then
                best, best_rank, best_served = text(member, #prefix + 14), rank, served
            end
        end
    end
    if #line[LINE.groups] > 1 and #left < 2 then
        mixed:drop(name)
    end
    line[LINE.groups] = left
    return best
end

local function make_ready(row, event)
    move(row, event, STATE.READY)
    row[ROW.place], row[ROW.ready_us] = row[ROW.joined] > 0 and row[ROW.joined] or next_number(), NOW
    if row.profile.is_scope then -- it is fetched by name
        if row.profile[PROFILE.kind] == KIND.LOCK then
            offers:add(row.number8 .. row.id, NOW)
        end
    else
        ready:add(in_lane(row))
        if row[ROW.is_apart] and row[ROW.strayed_us] > 0 and text(row[ROW.reason], 1, 10) ~= 'unroutable' then
            strays:add(row.number8 .. row.id, row[ROW.strayed_us])
        end
    end
    wake(row.profile[PROFILE.queue])
end

local function leave_lane(row)
    if not row.profile.is_scope then
        ready:drop(in_lane(row))
    end
end

local function arrange(name)
    local line = line_of(name)
    local first = line[LINE.holder] == '' and first_in_line(name, line) or nil
    local head = line[LINE.head]
    if head ~= '' and head ~= first then
        local row = get_row(head)
        if row and row[ROW.state] == STATE.READY then
            touch(row)
            leave_lane(row)
            move(row, EVENT.HOLD, STATE.HELD)
        end
        line[LINE.head] = ''
    end
    if first and line[LINE.head] ~= first then
        line[LINE.head] = first
        local row = get_row(first)
        if row[ROW.state] == STATE.HELD then
            make_ready(row, EVENT.PROMOTE)
        end
    end
    if line[LINE.holder] == '' and not first then
        lines:del(name)
    else
        lines:set(name, line)
    end
end

local function leave(row)
    touch(row)
    if row[ROW.state] == STATE.READY then
        leave_lane(row)
    end
    local name = row.extra[EXTRA.line]
    local line = name ~= '' and lines:get(name)
    if not line then
        return
    end
    local state = row[ROW.state]
    if line[LINE.holder] == row.id then
        line[LINE.holder] = ''
    elseif state == STATE.HELD or state == STATE.READY then
        members:drop(in_line(row))
        line[LINE.waiting] = line[LINE.waiting] - 1
    end
    if line[LINE.head] == row.id then
        line[LINE.head] = ''
    end
    arrange(name)
end

-- Lets a job wait where it belongs: for its time, for its line, or for a worker.
local function enter(row, event)
    if row[ROW.due_us] > NOW then
        move(row, event, STATE.SCHEDULED)
        wake(row.profile[PROFILE.queue])
        return
    end
    local name = row.extra[EXTRA.line]
    local line = name ~= '' and lines:get(name)
    if name == '' or (line and line[LINE.holder] == row.id) then -- an ordered retry kept it
        make_ready(row, event)
        return
    end
    touch(row)
    if row[ROW.joined] == 0 then
        row[ROW.joined] = next_number()
    end
    move(row, event, STATE.HELD)
    if line then
        join_line(row)
        arrange(name)
    else -- it stands there alone
        join_line(row)[LINE.head] = row.id
        make_ready(row, EVENT.PROMOTE)
    end
end

-- == parents
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

-- == coming in
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

-- == claims
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

-- == ends of attempts
-- Returns the running job if (instance, job, fence) is its attempt (P15).
local function jobs_holds(instance, job, fence)
    local row = get_row(job)
    if row and row[ROW.state] == STATE.RUNNING and row[ROW.fence] == fence and row[ROW.instance] == instance then
        return row
    end
    return nil
end

-- An attempt has planted intents beside its declared ones: its end must look for them.
local function jobs_planted(job)
    local row = get_row(job)
    touch(row)
    row[ROW.has_planted] = true
end

-- Voids keys and sets floors, each in the partition that has the key; tags and families here.
local function void_names(keys, tags, families, versions, closes)
    if #keys == 0 and #tags == 0 and #families == 0 and #versions == 0 and #closes == 0 then
        return
    end
    local names, are_named = each_once(keys)
    local here = {}
    for i = 1, #names do
        if is_here(names[i]) then
            here[#here + 1] = names[i]
        end
    end
    cells_invalidate(here, tags, families, of_names(versions, is_here), of_names(closes, is_here))
    local floors = {}
    for _, list in ipairs({ versions, closes }) do
        for i = 1, #list do
            floors[#floors + 1] = list[i][1]
        end
    end
    local order, there = by_partition((each_once(names, floors)))
    for _, to in ipairs(order) do
        local voided, is_there = {}, {}
        for _, name in ipairs(there[to]) do
            is_there[name] = true
            if are_named[name] then
                voided[#voided + 1] = name
            end
        end
        local function is_wanted(name)
            return is_there[name]
        end
        post(to, 'void', voided, NOTHING, NOTHING, of_names(versions, is_wanted), of_names(closes, is_wanted))
    end
end

-- Closes keys that no intent guards to fills, for as long as a write may still land.
local function closing(closes, keys)
    if #keys == 0 then
        return closes
    end
    local all = { unpack(closes) }
    for i = 1, #keys do
        all[#all + 1] = { keys[i], LIMIT.INTENT_GRACE_US }
    end
    return all
end

-- The lease was lost: what the attempt may have written is voided once more (G4).
local function void_late(settlement)
    local put_keys = {}
    for i, put in ipairs(settlement[SETTLE.puts]) do
        put_keys[i] = put[1]
    end
    local keys = each_once(
        settlement[SETTLE.writes], settlement[SETTLE.serves], settlement[SETTLE.keys], settlement[SETTLE.planted], put_keys
    )
    local closes = settlement[SETTLE.closes]
    if settlement[SETTLE.unsure] then
        closes = closing(closes, settlement[SETTLE.serves])
    end
    void_names(keys, settlement[SETTLE.tags], settlement[SETTLE.families], NOTHING, closes)
end

-- Whether a settlement is of the most common kind: a success that touches nothing beside the one key that its job
-- writes, and that key is here.
local function is_of_one_key(row, settlement)
    local writes, puts = row.extra[EXTRA.writes], settlement[SETTLE.puts]
    local key, put = writes[1], puts[1]
    return key and not writes[2] and not elsewhere[key] and not puts[2] and (not put or put[1] == key)
        and settlement[SETTLE.event] == EVENT.SUCCEED and not row[ROW.has_planted]
        and #settlement[SETTLE.planted] == 0 and #settlement[SETTLE.keys] == 0 and #settlement[SETTLE.tags] == 0
        and #settlement[SETTLE.families] == 0 and #settlement[SETTLE.versions] == 0 and #settlement[SETTLE.closes] == 0
        and #row.extra[EXTRA.serves] == 0
end

local function settle_cells(row, settlement)
    local owner, success = owner_of(row), settlement[SETTLE.event] == EVENT.SUCCEED
    if is_of_one_key(row, settlement) then
        local key = row.extra[EXTRA.writes][1]
        local position, stamp = cells_resolve(owner, key, settlement[SETTLE.puts][1])
        return position and { { key, position, stamp } } or NOTHING
    end
    local unsure = settlement[SETTLE.unsure] and not success
    local puts, put_keys = {}, {}
    for i, put in ipairs(settlement[SETTLE.puts]) do
        puts[put[1]] = put
        put_keys[i] = put[1]
    end
    local writes, planted = row.extra[EXTRA.writes], settlement[SETTLE.planted]
    local standing = NOTHING
    if row[ROW.has_planted] then
        standing = cells_keys_of(owner)
    end
    local own, is_own = each_once(writes, planted, standing)
    local stored = {}
    local versions, closes = settlement[SETTLE.versions], settlement[SETTLE.closes]
    if unsure then
        closes = closing(closes, row.extra[EXTRA.serves])
    end
    cells_set_floors(of_names(versions, is_here), of_names(closes, is_here))
    local far_keys, is_far = {}, {}
    for _, key in ipairs(own) do
        if not is_here(key) then
            far_keys[#far_keys + 1] = key
        elseif unsure then
            cells_leave(owner, key)
        elseif settlement[SETTLE.event] == EVENT.RELEASE and not settlement[SETTLE.started] then
            cells_restore(owner, key)
        else
            local position, stamp = cells_resolve(owner, key, success and puts[key] or nil)
            if position then
                stored[#stored + 1] = { key, position, stamp }
            end
        end
    end
    if unsure then
        row[ROW.unsure] = row[ROW.unsure] or #own > 0
        local left, is_left = each_once(row[ROW.left])
        left = { unpack(left) }
        for _, key in ipairs(far_keys) do
            if not is_left[key] then
                left[#left + 1] = key
                left[#left + 1] = elsewhere[key]
                is_left[key] = true
            end
        end
        row[ROW.left] = left
        far_keys = NOTHING
    end
    local order, there = by_partition(far_keys)
    for _, to in ipairs(order) do
        local its_puts, is_there = {}, {}
        for _, key in ipairs(there[to]) do
            is_there[key], is_far[key] = true, true
            if success and puts[key] then
                its_puts[#its_puts + 1] = puts[key][2]
            end
        end
        local function is_wanted(key)
            return is_there[key]
        end
        post(
            to, 'resolve', owner[1], owner[2], owner[3], there[to], its_puts, 0, of_names(versions, is_wanted), of_names(closes, is_wanted)
        )
    end
    local undeclared = {}
    for _, key in ipairs(put_keys) do
        if not is_own[key] then
            undeclared[#undeclared + 1] = key
        end
    end
    local function is_other(key)
        return not is_here(key) and not is_far[key]
    end
    local names = each_once(undeclared, settlement[SETTLE.keys], row.extra[EXTRA.serves])
    void_names(
        names, settlement[SETTLE.tags], settlement[SETTLE.families], of_names(versions, is_other), of_names(closes, is_other)
    )
    return stored
end

-- Back to waiting: for its back-off, at the line's tail or in its old place (P21).
local function wait_again(row, event, due_us)
    local unique = row.extra[EXTRA.unique]
    local entry = unique ~= '' and directory:get(unique)
    if entry and entry[1] ~= row.id and entry[2] == M.index and has_right(entry[1], unique) then
        row[ROW.reason] = string.format(REASON.SUPERSEDED, entry[1])
        end_job(row, EVENT.SUPERSEDE, STATE.CANCELLED)
        return
    end
    hold_again(row)
    row[ROW.due_us] = due_us
    if event == EVENT.GIVE_BACK then
        if row[ROW.strayed_us] == 0 then
            row[ROW.strayed_us] = NOW
        end
    elseif event ~= EVENT.RELEASE then
        row[ROW.expires_us] = 0 -- it has started
    end
    local is_ordered = row.profile[PROFILE.ordered]
    if (event == EVENT.RETRY or event == EVENT.SNOOZE) and not is_ordered then
        row[ROW.joined] = 0
    end
    local name = row.extra[EXTRA.line]
    local leaves = name ~= '' and not (event == EVENT.RETRY and is_ordered)
    if leaves then
        line_of(name)[LINE.holder] = ''
        lines:set(name, line_of(name))
    end
    enter(row, event)
    if leaves then
        arrange(name)
    end
end

local function remember(row, event, reason, unsure)
    local history, first = {}, 1
    if #row[ROW.history] >= LIMIT.HISTORY_MOST then
        first = #row[ROW.history] - LIMIT.HISTORY_MOST + 2
    end
    for i = first, #row[ROW.history] do
        history[#history + 1] = row[ROW.history][i]
    end
    history[#history + 1] = { row[ROW.attempt], row[ROW.fence], event, NOW, reason, unsure }
    row[ROW.history] = history
end

local function apply(row, event, result, error_, reason, delay_us, unsure)
    touch(row)
    if event ~= EVENT.SUCCEED then
        remember(row, event, reason, unsure)
    end
    if UNCOUNTED[event] then
        row[ROW.attempt] = row[ROW.attempt] - 1
    end
    local was_asked = row[ROW.cancel_requested]
    local asked_for = was_asked and row[ROW.reason] or ''
    if was_asked then
        cancels:drop(sized(row.holder) .. row[ROW.fence] .. row.id)
    end
    row[ROW.reason], row[ROW.error] = reason, error_
    if event == EVENT.SUCCEED then
        row[ROW.result] = result
        end_job(row, event, STATE.SUCCEEDED)
        return
    end
    local is_spent = row[ROW.lost] >= row.profile[PROFILE.max_lost]
    local ending = ENDINGS[event
        .. (row.profile.is_scope and '1' or '0') .. (was_asked and '1' or '0') .. (is_spent and '1' or '0')]
    if ending[1] == EVENT.CANCEL then
        local says = reason ~= '' and (event == EVENT.CANCEL or event == EVENT.FAIL)
        row[ROW.reason] = says and reason or asked_for
    elseif ending[1] == EVENT.EXHAUST then
        row[ROW.reason] = reason == REASON.LOST and string.format(REASON.LOST_AGAIN, row[ROW.lost])
            or string.format(REASON.LOST_SAYING, row[ROW.lost], reason)
    end
    if ending[2] then
        end_job(row, ending[1], ending[2])
    else
        wait_again(row, event, NOW + ((event == EVENT.RELEASE or event == EVENT.LOSE) and 0 or delay_us))
    end
end

local function send(child, row)
    local id, blob, home = child[1], child[2], child[3]
    if home == M.index then
        return admit(id, blob)
    end
    local new = new_row(id, blob)
    post(home, 'admit', id, blob, merge_positions(new.extra[EXTRA.positions], seen_by(row)))
    return { id, STATE.BLOCKED, 1, 0, '' }
end

-- Ends an attempt and applies its effects (L4, L5). Returns: state (0: refused), refusal, stored, children.
local function settle(instance, settlement)
    learn(settlement[SETTLE.homes])
    local row = jobs_holds(instance, settlement[SETTLE.job], settlement[SETTLE.fence])
    if not row then
        void_late(settlement)
        return { 0, REFUSAL.LEASE_LOST, NOTHING, NOTHING }
    end
    local event = settlement[SETTLE.event]
    if not SETTLING[event] then
        return { 0, REFUSAL.WRONG_STATE, NOTHING, NOTHING }
    end
    touch(row)
    if (event == EVENT.RELEASE or event == EVENT.GIVE_BACK) and (row[ROW.lost] > 0 or row[ROW.unsure]) then
        settlement[SETTLE.unsure] = true -- it did nothing; one before it may write yet (P18)
    end
    local stored = settle_cells(row, settlement)
    row.holder, row[ROW.instance] = row[ROW.instance], ''
    apply(
        row, event, settlement[SETTLE.result], settlement[SETTLE.error], settlement[SETTLE.reason], settlement[SETTLE.delay_us],
        settlement[SETTLE.unsure]
    )
    local children = {}
    if event == EVENT.SUCCEED then
        for i, child in ipairs(settlement[SETTLE.children]) do
            children[i] = send(child, row)
        end
    end
    return { row[ROW.state], '', stored, children }
end

-- Settles one attempt as lost. Its intents pass to the next attempt, or stand a grace (P18).
local function lose(row, reason)
    touch(row)
    local serves = row.extra[EXTRA.serves]
    void_names(serves, NOTHING, NOTHING, NOTHING, closing(NOTHING, serves))
    cells_pass_on(owner_of(row))
    row.holder, row[ROW.instance] = row[ROW.instance], ''
    row[ROW.lost] = row[ROW.lost] + 1
    apply(row, EVENT.LOSE, false, false, reason, 0, false)
end

local function plain_settlement(job, fence, event, reason)
    return {
        job, fence, event, false, false, reason, 0, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING,
        NOTHING, NOTHING, true, false, NOTHING,
    }
end

local function release(row, reason)
    settle(row[ROW.instance], plain_settlement(row.id, row[ROW.fence], EVENT.RELEASE, reason))
end

-- == ends of jobs
-- Frees what a job leaves behind: its unique key, and intents of attempts that were lost or unsure (P18).
local function let_go(row)
    free_unique(row)
    if not (row[ROW.lost] > 0 or row[ROW.unsure]) then
        return
    end
    local owner = owner_of(row)
    cells_let_stand(owner, NOW + LIMIT.INTENT_GRACE_US)
    learn(row[ROW.left])
    local keys = {}
    for i = 1, #row[ROW.left], 2 do
        keys[#keys + 1] = row[ROW.left][i]
    end
    local order, there = by_partition((each_once(row.extra[EXTRA.writes], keys)))
    for _, to in ipairs(order) do
        post(to, 'resolve', owner[1], owner[2], owner[3], there[to], NOTHING, LIMIT.INTENT_GRACE_US, NOTHING, NOTHING)
    end
end

local function forget(row)
    rows[row.id] = false
    tickets:del(row.id)
    dyns:del(row.id)
    forget_number(row.id, row.number)
    if M.partitions > 1 and not row.profile.is_scope then
        free_name(ID_ENTRY .. row.id, row.id)
    end
    local state = row[ROW.state]
    local at = row.number8 .. row.id
    if FINAL[state] then
        ended:drop(at)
    elseif state == STATE.SCHEDULED then
        due:drop(in_due(row))
    elseif state == STATE.BLOCKED then
        far:drop(at)
    elseif state == STATE.READY then
        strays:drop(at)
    end
    if is_waiting_to_expire(row) then
        expiry:drop(at)
    end
    if row[ROW.asker] ~= '' then
        asked:drop(sized(row[ROW.asker]) .. at)
    end
    if not row.profile.is_scope then
        count_jobs(row.profile[PROFILE.queue], state, -1)
    end
end

local function end_job(row, event, state)
    leave(row)
    move(row, event, state)
    row[ROW.ended_us], row[ROW.stuck] = NOW, NOTHING
    if row[ROW.asker] ~= '' then
        asked:drop(sized(row[ROW.asker]) .. row.number8 .. row.id)
        row[ROW.asker] = ''
    end
    local is_failed = state == STATE.FAILED and not row.profile.is_scope
    local ttl = is_failed and row.profile[PROFILE.failed_ttl_us] or row.profile[PROFILE.result_ttl_us]
    row[ROW.keep_until_us] = NOW + ttl
    ended:add(row.number8 .. row.id, NOW + ttl)
    let_go(row)
    begin_telling(row, 0)
    if row.profile[PROFILE.kind] == KIND.LOCK then -- nothing can wait for it
        forget(row)
    end
end

local function cancel(row, reason)
    local state = row[ROW.state]
    if WAITING[state] then
        touch(row)
        row[ROW.reason] = reason
        end_job(row, EVENT.CANCEL, STATE.CANCELLED)
        return true
    end
    if state == STATE.RUNNING and not row[ROW.cancel_requested] then
        touch(row)
        row[ROW.cancel_requested], row[ROW.reason] = true, reason
        cancels:add(sized(row[ROW.instance]) .. row[ROW.fence] .. row.id)
        called[#called + 1] = row[ROW.instance]
        return true
    end
    return false
end

local function expire_one(row)
    if not WAITING[row[ROW.state]] then
        return 0
    end
    touch(row)
    row[ROW.reason] = REASON.LATE
    end_job(row, EVENT.EXPIRE, STATE.EXPIRED)
    return 1
end

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
