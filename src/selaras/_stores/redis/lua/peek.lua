-- peek: the jobs that a worker would claim next: ids, and ticket and row of each
-- uses: rows, plain
-- arguments: queues, tasks, the most jobs
-- keys: dyn jobs ready
-- cost: O(L + N) for L lanes and N jobs        -- promise: one moment
-- flags: no-writes

local tasks = {}
for _, task in ipairs(REQ[2]) do
    tasks[task] = true
end
local ids, lanes = {}, lanes_for(REQ[1], tasks)
if #lanes > 0 then
    local found, sizes = next_ready(lanes, REQ[3])
    for i = 1, #found do
        local at = type(sizes) == 'number' and sizes or sizes[found[i]]
        ids[i] = text(found[i], at + 15)
    end
end
return finish(ids, read_many(K.jobs, ids), read_many(K.dyn, ids))
