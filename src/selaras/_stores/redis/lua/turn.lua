-- turn: settles what has ended, lets go on whose time has come, claims, and tells the news (L2, L9)
-- uses: log, rows, cells, jobs, plain
-- arguments: instance, number, acked, settlements, queues, tasks, limit, idle, progress (job, fence, data, ...), full
-- keys: none
-- cost: O(log N) a job that is settled, let go on or claimed, and O(M) for M keys, children and dependents of it
-- promise: atomic; a repeat of a number does nothing again
-- flags: allow-oom

local instance, number, acked = REQ[1], REQ[2], REQ[3]
local holder = holders:get(instance)
if not holder then
    return finish(0, settle_all(instance, REQ[4]))
end
-- Turns that claimed nothing, and settled nothing or by successes alone, are noted in the holder's row: number, successes.
local short, last = holder[HOLDER.short] or {}, holder[HOLDER.last] or FAR
if acked > holder[HOLDER.acked] then
    local others, unacked = acked - holder[HOLDER.acked], {}
    for i = 1, #short, 2 do
        if short[i] <= acked then
            others = others - 1
        else
            unacked[#unacked + 1], unacked[#unacked + 2] = short[i], short[i + 1]
        end
    end
    if others > 0 then
        local from, to = '(' .. turn_field(instance, holder[HOLDER.acked]), '[' .. turn_field(instance, acked)
        for _, field in ipairs(call('ZRANGE', K.batches, from, to, 'BYLEX')) do
            if (tonumber(call('HGET', K.left, field) or 0) or 1) <= 0 then
                drop_turn(field)
            end
        end
    end
    holder[HOLDER.acked], short = acked, unacked
else
    acked = holder[HOLDER.acked]
end

if not holder[HOLDER.queues][1] then
    holder[HOLDER.queues] = REQ[5] -- as it enrolled, before it was mended
end

local function set_of(names)
    local set = {}
    for _, name in ipairs(names) do
        set[name] = true
    end
    return set
end

local tasks, full = set_of(REQ[6]), set_of(REQ[10])
local field = turn_field(instance, number)
local settled, claims, position, more = NOTHING, NOTHING, M.position, false
local kept = number > acked and number <= last and turns:get(field)
for i = 1, #short, 2 do
    if short[i] == number then
        kept = { position, (short[i + 1] or 0) > 0 and { short[i + 1] } or NOTHING, NOTHING, NOTHING }
    end
end
if kept then
    settled, position = kept[TOLD.settled], kept[TOLD.position]
    claims = claims_again(instance, kept)
    local _
    _, _, _, more = claim_all(instance, number, REQ[5], tasks, full, 0)
elseif number > acked then
    settled = settle_all(instance, REQ[4])
    local progress = REQ[9]
    for i = 1, #progress, 3 do
        local row = jobs_holds(instance, progress[i], progress[i + 1])
        if row then
            touch(row)
            row[ROW.progress] = progress[i + 2]
        end
    end
    promote(LIMIT.DUE_PER_TURN)
    if M.tellings > 0 then
        tell_on(true)
    end
    local taken, preimages
    claims, taken, preimages, more = claim_all(instance, number, REQ[5], tasks, full, REQ[7])
    position = M.position
    if #taken == 0 and (#settled == 0 or (#settled == 1 and type(settled[1]) == 'number')) then
        short[#short + 1], short[#short + 2] = number, settled[1] or 0
    else
        turns:set(field, { position, settled, taken, preimages })
        call('ZADD', K.batches, 0, field)
        if #taken > 0 then
            call('HSET', K.left, field, #taken / 2)
        end
    end
    last = math.max(last, number)
else
    local _
    _, _, _, more = claim_all(instance, number, REQ[5], tasks, full, 0)
end
more = more or M.tellings > 0
if more then
    for _, queue in ipairs(REQ[5]) do
        wake(queue)
    end
end
drop_idle(instance, holder)
wake_all()
if REQ[8] and #claims == 0 and not more and #REQ[5] > 0 then
    holder[HOLDER.idle] = REQ[5]
    for _, queue in ipairs(REQ[5]) do
        idle:add(sized(queue) .. struct.pack('>I8', holder[HOLDER.code]) .. instance)
    end
end
holder[HOLDER.last], holder[HOLDER.short] = last, short
holders:set(instance, holder)
return finish(1, settled, claims, position, more and 1 or 0, next_due_us(), cancels_of(instance), has_effects())
