-- tend: due jobs, lost workers (looked at twice, P19), expiry, retention, lines, the log's length
-- uses: log, rows, cells, jobs, mending
-- arguments: limit
-- keys: none
-- cost: O(limit log N), and O(I) for I instances        -- promise: atomic
-- flags: allow-oom

local expiry = index(K.expiry)
local ended = index(K.ended)
local offers = index(K.offers)
local far = index(K.far)
local strays = index(K.strays)
local limit = REQ[1]
mend_marks()
local promoted = promote(limit)

-- The first look at an expired lease suspects, the second, a grace later, settles as lost (P19).
local suspected, lost, late = 0, 0, {}
local known = call('HGETALL', K.holders)
for i = 1, #known, 2 do
    if known[i] ~= '\255' then
        local holder = holders:get(known[i])
        if holder and holder[HOLDER.until_us] <= NOW then
            late[#late + 1] = { known[i], holder }
        end
    end
end
table.sort(late, function(a, b)
    return a[2][HOLDER.code] < b[2][HOLDER.code]
end)
local are_left = false
for _, one in ipairs(late) do
    local instance, holder = one[1], one[2]
    if lost >= LIMIT.TAKEN_AT_ONCE then
        are_left = true
        break
    end
    if holder[HOLDER.suspected_us] == 0 then
        holder[HOLDER.suspected_us] = NOW
        holders:set(instance, holder)
        suspected = suspected + 1
    elseif NOW - holder[HOLDER.suspected_us] >= math.max(LIMIT.REAP_GRACE_US, math.floor(holder[HOLDER.lease_us] / 2)) then
        local running
        running, are_left = running_of(instance, function()
            return true
        end, LIMIT.TAKEN_AT_ONCE - lost)
        if not are_left then
            strike(instance)
        end
        for _, row in ipairs(running) do
            lose(row, REASON.LOST)
        end
        lost = lost + #running
    end
end

-- Ids of those whose time has come. A member that does not stand for such a job goes.
local function ids_until(set, key, most, until_us, is_such)
    set:flush()
    local found, ids, such = call('ZRANGE', key, '-inf', until_us, 'BYSCORE', 'LIMIT', 0, most), {}, {}
    for i = 1, #found do
        ids[i] = text(found[i], 9)
    end
    read_ahead(ids)
    for i = 1, #ids do
        local row = get_row(ids[i])
        if row and is_such(row) and row.number8 == text(found[i], 1, 8) then
            such[#such + 1] = ids[i]
        else
            set:drop(found[i])
        end
    end
    return such
end

local function is_waiting(row)
    return WAITING[row[ROW.state]]
end

local expired = 0
for _, id in ipairs(ids_until(expiry, K.expiry, limit, NOW, is_waiting)) do
    expired = expired + expire_one(get_row(id))
end

local function is_final(row)
    return FINAL[row[ROW.state]]
end

local over, forgotten = ids_until(ended, K.ended, limit, NOW, is_final), 0
for _, id in ipairs(over) do
    local row = get_row(id)
    if not is_told_of(id) then
        forget(row)
        begin_telling(row, 1)
        forgotten = forgotten + 1
    end
end

local offered = {}
for _, id in ipairs(ids_until(offers, K.offers, 1000, NOW - LIMIT.LOCK_ACCEPT_US, is_waiting)) do
    offered[#offered + 1] = get_row(id)
end
table.sort(offered, function(a, b)
    return a.number < b.number
end)
for _, row in ipairs(offered) do
    cancel(row, 'the lock was not fetched')
end

local is_arranging = arrange_some()
local fallen = cells_drop_fallen(limit)
local are_dead_left = cells_drop_dead()
if M.tellings > 0 then
    tell_on(true)
end

-- Parents elsewhere are told once more of jobs that have long waited for them (P22).
local registered = ids_until(far, K.far, limit, NOW - LIMIT.ORPHAN_US, is_waiting)
for _, id in ipairs(registered) do
    local row = get_row(id)
    touch(row)
    row[ROW.registered_us] = NOW
    far:add(row.number8 .. id, NOW)
    local is_stuck = {}
    for _, parent in ipairs(row[ROW.stuck]) do
        is_stuck[parent] = true -- it has told us that it failed
    end
    for _, wait in ipairs(row[ROW.waits]) do
        if wait[3] ~= M.index and not is_stuck[wait[1]] then
            post(wait[3], 'register', wait[1], id, wait[2], M.index)
        end
    end
end

local unroutable = ids_until(strays, K.strays, 1000, NOW - LIMIT.UNROUTABLE_US, is_waiting)
for _, id in ipairs(unroutable) do
    local row = get_row(id)
    touch(row)
    row[ROW.reason] = string.format(REASON.UNROUTABLE, row.profile[PROFILE.task])
    strays:drop(row.number8 .. id)
end

local is_mending = mend_some()
local trimmed = log_trim()
wake_all()
local is_more = promoted == limit or expired == limit or forgotten == limit or fallen == limit or #registered == limit or M.tellings > 0 or is_mending or is_arranging or are_left or are_dead_left
return finish(
    promoted, suspected, lost, expired, forgotten, #unroutable, trimmed, is_more and 1 or 0, cells_orphans(NOW - LIMIT.ORPHAN_US), has_effects()
)
