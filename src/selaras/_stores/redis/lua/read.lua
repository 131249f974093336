-- read: find what stands at keys, and grant tokens where nothing does and the reader wants one
-- uses: log, cells
-- keys: none
-- request: key, lease_us, stamp of an entry to be dropped ('!' before it: its value was not there) or '', stamp to renew or '', of each look in turn
-- reply: a look each: {0, token, floor} | {1, expires_in_us, row, token or '', wait_us, floor} | {2, wait_us, floor} | {3, floor}
-- cost: O(1) a key; promise: atomic
-- flags: allow-oom

local ON_ITS_WAY_US = 250000 -- a value is written right behind the script that stored its entry

local function look(key, lease_us, distrust, renews)
    local floor = floors:get(key)
    local version = floor and floor[1]
    if intents:get(key) or (floor and floor[2] > NOW) then return {3, version} end
    local found = valid(key)
    local stamp = found and found[2]:sub(1, 16)
    if found and distrust == '!' .. stamp then
        local age_us = math.max(0, NOW - tonumber(stamp:sub(4), 16))
        if age_us < ON_ITS_WAY_US then return {2, ON_ITS_WAY_US - age_us, version} end
        distrust = stamp
    end
    if found and distrust == stamp then
        entries:del(key)
        found = nil
    end
    if found and (lease_us == 0 or stamp ~= renews) then return {1, found[1], found[2], '', 0, version} end
    local token = tokens:get(key)
    if token then
        local _, until_us = struct.unpack(ROW, token)
        if until_us > NOW then
            local wait_us = until_us - NOW
            if found then return {1, found[1], found[2], '', wait_us, version} end
            return {2, wait_us, version}
        elseif not found and until_us < -NOW and M.last_mark == LIMIT.OPEN_POSITION then
            return {3, version}
        end
    end
    if lease_us == 0 then return {2, 0, version} end
    local granted = next_counter()
    tokens:set(key, struct.pack(ROW, granted, NOW + lease_us, M.position))
    if found then return {1, found[1], found[2], granted, 0, version} end
    return {0, granted, version}
end

if #REQ > 4 then
    local keys = {}
    for place = 1, #REQ, 4 do keys[#keys + 1] = REQ[place] end
    floors:prefetch(keys)
    intents:prefetch(keys)
    entries:prefetch(keys)
end
local looks = {}
for place = 1, #REQ, 4 do
    looks[#looks + 1] = look(REQ[place], REQ[place + 1], REQ[place + 2], REQ[place + 3])
end
return finish(looks)
