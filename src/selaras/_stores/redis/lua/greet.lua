-- greet: makes a partition or keys that it lacks, and begins a new epoch of one that its server may have forgotten parts of
-- uses: log, cells
-- arguments: format, partitions, index, run id of the server, sharded (1: hints go by sharded pub/sub), the highest epoch that the caller has seen (-1: none), whether a full server would throw jobs away
-- reply: the format and the partitions that it has, and its epoch; format 0: there is none, and none was made
-- keys: accepted asked batches cancels counts dependents directory due dyn edges ended expiry far holders idle jobs left lines members mixed offers outbox page_order pages queues ready strays tellings turns
-- cost: O(1), at a new epoch O(entries)                           -- promise: atomic
-- flags: allow-oom

local format, partitions, index_, run, sharded, seen, loses_jobs = unpack(REQ)
if type(redis.pcall('HGET', K.meta, 'format')) == 'table' then
    call('UNLINK', K.meta)
    damage('meta')
end
local told = redis.pcall('LRANGE', K.log, -1, -1)
local is_new = not ledger and not told.err and not told[1]
if is_new and loses_jobs and seen < 0 then -- who has seen one goes on
    return { 0, 0, 0 }
end
local kept = call('HMGET', K.meta, 'format', 'partitions', 'run', 'epoch')
if not (tonumber(kept[1]) and tonumber(kept[2])) then -- they are written first: whoever finds more without them takes it for his own
    kept[1], kept[2] = format, partitions
    call('HSET', K.meta, 'format', format, 'partitions', partitions)
    if not is_new then
        damage('meta')
    end
end
if tonumber(kept[1]) ~= format or tonumber(kept[2]) ~= partitions then
    return { 0, tonumber(kept[1]), tonumber(kept[2]), M.epoch }
end
if is_new then
    M.partitions, M.index, M.epoch = partitions, index_, seen + 1
    kept[3] = run
    call('HSET', K.meta, 'run', run)
end
if told.err then
    call('UNLINK', K.log)
end
if not told[1] then
    if not is_new then
        damage('log')
    end
    log_create()
end
local has_marks = let_set_be(K.marks, 0) or is_new
cells_create(is_new)
for _, key in ipairs({
    K.jobs, K.dyn, K.queues, K.turns, K.lines, K.directory, K.holders, K.counts, K.left, K.edges, K.pages, K.accepted,
}) do
    let_hash_be(key)
end
for _, key in ipairs({ K.ready, K.members, K.mixed, K.asked, K.cancels, K.idle, K.outbox, K.batches, K.dependents, K.tellings }) do
    let_set_be(key, 0)
end
for _, key in ipairs({ K.due, K.expiry, K.ended, K.far, K.strays, K.offers, K.page_order }) do
    let_set_be(key, '+inf')
end
if not ledger and not is_new then -- it was written over: what it said is reckoned from the rest, and all cached values are void
    local is_read, position, event_id = pcall(struct.unpack, EVENT_HEAD, told[1])
    if not (is_read and position >= 0 and position < 2 ^ 52 and event_id >= 0 and event_id < 2 ^ 52) then
        position, event_id = 0, 0
    end
    local length, step = 0, 67108864 -- how long the log is, without reading it
    while step >= 1 do
        if #call('LRANGE', K.log, length + step - 1, length + step - 1) > 0 then
            length = length + step
        end
        step = step / 2
    end
    M.partitions, M.index = partitions, index_
    M.position, M.event_id = math.max(position, length), event_id
    M.before_position = M.position - length + 1
    M.tag_floor, M.last_mark = M.position, M.position
    if call('ZCOUNT', K.marks, LIMIT.OPEN_POSITION, '+inf') > 0 then
        M.last_mark = LIMIT.OPEN_POSITION
    end
    local last_page = call('ZRANGE', K.page_order, 1, 1, 'REV')[1] -- the last one is what lets the key be there
    M.numbers = ((tonumber(last_page) or 0) + 1) * LIMIT.PAGE
    M.dependents, M.instances, M.serving = NOW, NOW, NOW
    M.tellings = call('ZCARD', K.tellings) - 1
    M.epoch = math.max(tonumber(kept[4]) or 0, seen, 0)
    kept[3] = false
    damage('the ledger')
end
M.sharded = sharded
local is_anew = kept[3] ~= run or M.epoch < seen
if is_anew then
    log_begin_epoch(math.max(M.epoch, seen) + 1)
    call('HSET', K.meta, 'run', run, 'epoch', M.epoch)
    cells_forget()
end
if is_new or is_anew then
    publish('news', '') -- whose bells were forgotten comes and sees
end
if not has_marks then
    cells_lose_marks()
end
return finish(format, partitions, M.epoch)
