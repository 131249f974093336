-- listing: jobs in pages of their numbers, the newest first: id, ticket and row of each
-- uses: none
-- arguments: the page before which to begin (-1: at the end), the most pages
-- keys: dyn jobs page_order pages
-- cost: O(J) for J jobs of the pages        -- promise: one moment a call
-- flags: no-writes

local before, most = REQ[1], REQ[2]
local from = before < 0 and '(+inf' or string.format('(%d', before)
local pages = call('ZRANGE', K.page_order, from, 0, 'BYSCORE', 'REV', 'LIMIT', 0, most)
local found = {}
for i = 1, #pages do
    local ids = unsized(call('HGET', K.pages, pages[i]) or '')
    local kept, rows = read_many(K.jobs, ids), read_many(K.dyn, ids)
    for j = 1, #ids do
        -- One that was written over has another number than it had.
        if kept[j] and (#kept[j] < 25 or math.floor(struct.unpack('>I8', kept[j], 18) / LIMIT.PAGE) == tonumber(pages[i])) then
            found[#found + 1] = { ids[j], kept[j], rows[j] }
        end
    end
end
return finish(#pages < most and -1 or tonumber(pages[#pages]) or -1, found)
