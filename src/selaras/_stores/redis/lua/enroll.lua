-- enroll: makes an instance known, with a fresh lease
-- uses: log, rows, cells, jobs
-- arguments: instance, lease, queues, bell, all of it
-- keys: none
-- cost: O(Q) for Q queues        -- promise: atomic
-- flags: allow-oom

local instance, lease_us, served, bell, all = unpack(REQ)
local holder = holders:get(instance)
if holder then
    serve(holder[HOLDER.queues], -1)
else
    M.instances = M.instances + 1
    holder = { M.instances, 0, 0, 0, 0, NOTHING, '', false, '', 0, NOTHING }
end
holder[HOLDER.until_us], holder[HOLDER.suspected_us], holder[HOLDER.lease_us] = NOW + lease_us, 0, lease_us
holder[HOLDER.queues], holder[HOLDER.bell], holder[HOLDER.instance] = served, bell, all
holders:set(instance, holder)
serve(served, 1)
return finish()
