-- cancel: cancels a job, or asks its worker to
-- uses: log, rows, cells, jobs
-- arguments: id, reason
-- keys: none
-- cost: O(log N), and O(M) for M dependents        -- promise: atomic
-- flags: allow-oom

local row = get_row(REQ[1])
if not row then
    return finish(0, 0)
end
local did = cancel(row, REQ[2])
wake_all()
return finish(row[ROW.state], did and 1 or 0)
