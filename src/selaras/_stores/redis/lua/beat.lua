-- beat: renews the lease of an instance; releases and ends what it does not answer for (P16, P19)
-- uses: log, rows, cells, jobs, plain
-- arguments: instance, last turn, held (job, fence, ...), abandoned (job, fence, reason, ...), settlements, scopes, names scopes
-- keys: none
-- cost: O(M) for M attempts that the instance holds, and as settle        -- promise: atomic
-- flags: allow-oom

local asked = index(K.asked)
local instance, last_turn, held, abandoned, scopes = REQ[1], REQ[2], REQ[3], REQ[4], REQ[6]
local holder = holders:get(instance)
local settled = settle_all(instance, REQ[5])
if not holder then
    wake_all()
    return finish(0, settled, NOTHING, NOTHING)
end
local renewed_us = holder[HOLDER.until_us] - holder[HOLDER.lease_us]
holder[HOLDER.until_us], holder[HOLDER.suspected_us] = NOW + holder[HOLDER.lease_us], 0
holders:set(instance, holder)

local function set_of(attempts)
    local set = {}
    for i = 1, #attempts, 2 do
        set[attempts[i] .. attempts[i + 1]] = true -- a fence has 16 digits
    end
    return set
end

local is_held, reasons = set_of(held), {}
for i = 1, #abandoned, 3 do
    reasons[abandoned[i] .. abandoned[i + 1]] = abandoned[i + 2]
end
local running = running_of(instance, function(job, fence, turn)
    return reasons[job .. fence] or (turn > 0 and turn <= last_turn and not is_held[job .. fence])
end)
for _, row in ipairs(running) do
    local reason = reasons[row.id .. row[ROW.fence]]
    if reason then
        lose(row, reason)
    else
        release(row, REASON.UNHEARD)
    end
end
if REQ[7] then
    -- Those that nobody answers for. One asked for since the last beat may be younger than this one.
    local named = {}
    for i = 1, #scopes, 2 do
        named[scopes[i]] = named[scopes[i]] or {}
        named[scopes[i]][scopes[i + 1]] = true
    end
    asked:flush()
    local prefix, over = sized(instance), {}
    for _, member in ipairs(under(K.asked, prefix)) do
        local row = get_row(text(member, #prefix + 9))
        local fences = row and named[row.id]
        if
            row
            and row.created < renewed_us
            and (row[ROW.state] == STATE.RUNNING or (row.profile[PROFILE.kind] == KIND.LOCK and WAITING[row[ROW.state]]))
            and not (fences and (fences[''] or fences[row[ROW.fence]]))
        then
            over[#over + 1] = row
        end
    end
    for _, row in ipairs(over) do
        if row[ROW.state] == STATE.RUNNING then
            lose(row, REASON.LOST)
        else
            cancel(row, REASON.UNWANTED)
        end
    end
end
local lost, ids = {}, {}
for i = 1, #held, 2 do
    ids[#ids + 1] = held[i]
end
read_ahead(ids)
for i = 1, #held, 2 do
    if not jobs_holds(instance, held[i], held[i + 1]) then
        lost[#lost + 1] = (i - 1) / 2
    end
end
wake_all()
return finish(1, settled, lost, cancels_of(instance))
