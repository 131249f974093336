-- ends: the end of a job, whatever brought it
-- of: jobs
-- keys: none
-- made: with the part before it

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
