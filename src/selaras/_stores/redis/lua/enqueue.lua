-- enqueue: admits jobs, each on its own
-- uses: log, rows, cells, jobs, plain
-- arguments: groups, in order, each with its way: plain, head, {id, rest, ...}, delay_us; lined, head, {id, line, rest, ...}; other, id, blob
-- keys: none
-- cost: O(log N) a job, and O(M) for M others in a line or waiting        -- promise: atomic
-- flags: none

local admissions, ids = {}, {}
for i = 1, #REQ do
    if REQ[i][1] == WAY.OTHER then
        ids[#ids + 1] = REQ[i][2]
    end
end
if #ids > 1 then
    tickets:prefetch(ids)
end
for i = 1, #REQ do
    local group = REQ[i]
    if group[1] == WAY.PLAIN then
        admit_plain(group[4], group[2], group[3], admissions)
    elseif group[1] == WAY.LINED then
        admit_lined(group[2], group[3], admissions)
    else
        admissions[#admissions + 1] = admit(group[2], group[3])
    end
end
wake_all()
return finish(admissions, has_effects())
