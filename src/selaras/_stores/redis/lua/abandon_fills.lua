-- abandon_fills: take tokens back whose load failed
-- uses: log, cells
-- keys: none
-- request: key and token of each in turn
-- cost: O(1) a key; promise: atomic
-- flags: allow-oom

for place = 1, #REQ, 2 do
    local held = tokens:get(REQ[place])
    if held and held:sub(1, 16) == REQ[place + 1] then tokens:del(REQ[place]) end
end
return finish()
