-- fates: what is known of jobs, for the fates of their attempts: ticket and row of each
-- uses: none
-- arguments: jobs
-- keys: dyn jobs
-- cost: O(1) a job        -- promise: one moment
-- flags: no-writes

return finish(read_many(K.jobs, REQ), read_many(K.dyn, REQ))
