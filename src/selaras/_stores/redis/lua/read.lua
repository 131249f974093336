-- read: find what stands at keys, and grant tokens where nothing does and the reader wants one
-- uses: log, cells
-- keys: none
-- request: key, lease_us, stamp of an entry to be dropped ('!' before it: its value was not there) or '', stamp to renew or '', of each look in turn
-- reply: a look each: {0, token, floor} | {1, expires_in_us, row, token or '', wait_us, floor} | {2, wait_us, floor, token or ''} | {3, floor}; a token beside a wait is another reader's
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
        if age_us < ON_ITS_WAY_US then return {2, ON_ITS_WAY_US - age_us, version, ''} end
        distrust = stamp
    end
    if found and distrust == stamp then
        entries:del(key)
        found = nil
    end
    if found and (lease_us == 0 or stamp ~= renews) then return {1, found[1], found[2], '', 0, version} end
    local token = tokens:get(key)
    if token then
        local holder, until_us = struct.unpack(ROW, token)
        if until_us > NOW then
            local wait_us = until_us - NOW
            if found then return {1, found[1], found[2], holder, wait_us, version} end
            return {2, wait_us, version, holder}
        elseif not found and until_us < -NOW and M.last_mark == LIMIT.OPEN_POSITION then
            return {3, version}
        end
    end
    if lease_us == 0 then return {2, 0, version, ''} end
    local granted = next_counter()
    tokens:set(key, struct.pack(ROW, granted, NOW + lease_us, M.position))
    if found then return {1, found[1], found[2], granted, 0, version} end
    return {0, granted, version}
end

-- What was read of a key, for those who look further.
local function learn_row(rows, key, row)
    if row then rows:taken(key, row) else rows.rows[key] = false end
end

local keys = {}
for place = 1, #REQ, 4 do keys[#keys + 1] = REQ[place] end
local stored, barred, written
if #keys ~= 1 then
    stored, barred, written = read_many(K.entries, keys), read_many(K.floors, keys), read_many(K.intents, keys)
else
    stored, barred, written = {call('HGET', K.entries, keys[1])}, {call('HGET', K.floors, keys[1])}, {call('HGET', K.intents, keys[1])}
end
local looks = {}
for i = 1, #keys do
    local key, at = keys[i], 4 * i - 3
    local is_known, found = entries.rows[key] ~= nil, nil
    -- Most find an entry, and nothing that speaks against it.
    if stored[i] and not (is_known or barred[i] or written[i]) and REQ[at + 2] == '' and REQ[at + 3] == '' then
        local position, until_us = is_entry(stored[i])
        if position and (until_us == 0 or until_us > NOW) and not log_may_void(position) then
            found = {1, until_us > 0 and until_us - NOW or 0, stored[i], '', 0, false}
        end
    end
    if not found then
        if not is_known then
            learn_row(floors, key, barred[i])
            learn_row(intents, key, written[i])
            if entries.rows[key] == nil then learn_row(entries, key, stored[i]) end
        end
        found = look(key, REQ[at + 1], REQ[at + 2], REQ[at + 3])
    end
    looks[i] = found
end
return finish(looks)
