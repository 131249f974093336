-- settle: ends attempts outside a turn
-- uses: log, rows, cells, jobs, plain
-- arguments: instance, settlements
-- keys: none
-- cost: O(log N) a job, and O(M) for M keys, children and dependents of it        -- promise: atomic
-- flags: allow-oom

local settled = settle_all(REQ[1], REQ[2])
wake_all()
return finish(settled, has_effects())
