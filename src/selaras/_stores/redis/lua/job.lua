-- job: one job, with the log up to now
-- uses: log
-- arguments: id
-- keys: dyn jobs
-- cost: O(1)        -- promise: one moment
-- flags: no-writes

return finish(call('HGET', K.jobs, REQ[1]), call('HGET', K.dyn, REQ[1]))
