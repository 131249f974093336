-- pause: stops or resumes claims from a queue; heads of lines give their places up (P21)
-- uses: log, rows, cells, jobs
-- arguments: queue, paused
-- keys: none
-- cost: O(L log N) for L lines in which jobs of several queues wait        -- promise: atomic
-- flags: none

local field = 'p' .. REQ[1]
if REQ[2] then
    queues:set(field, '1')
else
    queues:del(field)
end
M.serving = M.serving + 1
arrange_all()
if not REQ[2] then
    wake(REQ[1])
end
wake_all()
return finish()
