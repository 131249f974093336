-- extend_fills: renew the tokens of loads that are still running
-- uses: log, cells
-- keys: none
-- request: lease_us, then key and token of each in turn
-- cost: O(1) a key; promise: atomic
-- flags: allow-oom

for place = 2, #REQ, 2 do
    local key, token = REQ[place], REQ[place + 1]
    local held = tokens:get(key)
    if held and held:sub(1, 16) == token then
        local _, until_us, granted_at = struct.unpack(ROW, held)
        if until_us > NOW then tokens:set(key, struct.pack(ROW, token, NOW + REQ[1], granted_at)) end
    end
end
return finish()
