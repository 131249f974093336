-- purge: deletes jobs that nobody runs, oldest first, in a bounded number of pages
-- uses: log, rows, cells, jobs
-- arguments: states, queue ('': any), limit, the page after which to begin (-1: at the first), the most pages
-- keys: none
-- cost: O(J log N) for J jobs of the pages        -- promise: atomic a call
-- flags: allow-oom

local wanted_states = {}
for _, state in ipairs(REQ[1]) do
    wanted_states[state] = state ~= STATE.RUNNING
end
local queue, limit, after, most = REQ[2], REQ[3], REQ[4], REQ[5]
local found = call('ZRANGE', K.page_order, string.format('(%d', after), '(+inf', 'BYSCORE', 'LIMIT', 0, most)
local wanted = {}
for i = 1, #found do
    local ids = unsized(call('HGET', K.pages, found[i]) or '')
    read_ahead(ids)
    local here = {}
    for _, id in ipairs(ids) do
        local row = get_row(id)
        if
            row
            and wanted_states[row[ROW.state]]
            and not row.profile.is_scope
            and not is_told_of(id)
            and (queue == '' or row.profile[PROFILE.queue] == queue)
        then
            here[#here + 1] = row
        end
    end
    table.sort(here, function(a, b)
        return a.number < b.number
    end)
    for _, row in ipairs(here) do
        if #wanted < limit then
            wanted[#wanted + 1] = row
        end
    end
end
for _, row in ipairs(wanted) do
    if WAITING[row[ROW.state]] then
        leave(row)
        let_go(row)
    end
    forget(row)
    begin_telling(row, 1)
end
wake_all()
return finish(#wanted, #found < most and -1 or tonumber(found[#found]) or -1)
