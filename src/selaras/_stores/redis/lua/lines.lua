-- lines: jobs that go one at a time: who holds a line, who waits in it, and who is next (P21)
-- of: jobs
-- keys: members meta
-- made: with the part before it

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
