-- enqueue: admits jobs, each on its own
-- uses: log, rows, cells, jobs, plain
-- arguments: groups, in order: {true, delay_us, head, {id, rest, ...}} of plain jobs, {false, id, blob} of another
-- keys: none
-- cost: O(log N) a job, and O(M) for M others in a line or waiting        -- promise: atomic
-- flags: none

local admissions, ids = {}, {}
for i = 1, #REQ do
    if not REQ[i][1] then
        ids[#ids + 1] = REQ[i][2]
    end
end
if #ids > 1 then
    tickets:prefetch(ids)
end
for i = 1, #REQ do
    local group = REQ[i]
    if group[1] then
        admit_plain(group[2], group[3], group[4], admissions)
    else
        admissions[#admissions + 1] = admit(group[2], group[3])
    end
end
wake_all()
return finish(admissions, has_effects())
