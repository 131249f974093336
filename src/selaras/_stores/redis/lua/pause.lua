-- pause: stops or resumes claims from a queue; heads of lines give their places up (P21)
-- uses: log, rows, cells, jobs
-- arguments: queue, paused
-- keys: none
-- cost: O(log N), and of the lines in which jobs of several queues wait so many as one step may; housekeeping goes on        -- promise: atomic
-- flags: none

local field = 'p' .. REQ[1]
if REQ[2] then
    queues:set(field, '1')
else
    queues:del(field)
end
M.serving = M.serving + 1
arrange_some()
if not REQ[2] then
    wake(REQ[1])
end
wake_all()
return finish()
