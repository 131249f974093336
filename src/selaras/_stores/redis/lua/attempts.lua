-- attempts: the end of an attempt: what becomes of the job, and of what it wrote (L3-L5, P15)
-- of: jobs
-- keys: none
-- made: with the part before it

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
