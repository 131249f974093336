-- fates: what is known of jobs, for the fates of their attempts: ticket and row of each
-- uses: none
-- arguments: jobs
-- keys: dyn jobs
-- cost: O(1) a job        -- promise: one moment
-- flags: no-writes

local kept, found = {}, {}
if #REQ > 0 then
    kept, found = call('HMGET', K.jobs, unpack(REQ)), call('HMGET', K.dyn, unpack(REQ))
end
return finish(kept, found)
