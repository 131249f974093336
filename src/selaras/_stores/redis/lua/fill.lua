-- fill: store loaded values whose tokens still allow it (L7)
-- uses: log, cells
-- keys: none
-- request: key, expires_in_us, tail, token, of each fill in turn
-- reply: {position, stamp} or nil each
-- cost: O(1) a key; promise: atomic
-- flags: allow-oom

local any = floors:get(OPENING)
local is_any_closed = any and any[2] > NOW

-- Says whether a tag or family of a value is closed to fills.
local function is_borne_closed(family, tags)
    local all, closed = floors:get(EVERYTHING), floors:get(open_name(SCOPE.FAMILY, family))
    if all and all[2] > NOW then return true end
    for i = 0, #tags do
        if i > 0 then closed = floors:get(open_name(SCOPE.TAG, tags[i])) end
        if closed and closed[2] > NOW then return true end
    end
    return false
end

local function fill(key, expires_in_us, tail, token)
    local held = tokens:get(key)
    if not held or held:sub(1, 16) ~= token then return false end
    local _, until_us, granted_at = struct.unpack(ROW, held)
    if until_us <= NOW or intents:get(key) then return false end
    tokens:del(key)
    local floor = floors:get(key)
    if floor and floor[2] > NOW then return false end
    local below = floor and floor[1]
    if below or is_any_closed or log_may_void(granted_at) then
        local told = cmsgpack.unpack(tail:sub(TAIL_HEAD + 1))
        if is_below(told[2], below) then return false end
        if is_any_closed and is_borne_closed(told[3], told[4]) then return false end
        if log_voided_after(granted_at, told[3], told[4]) then
            if log_is_open(told[3], told[4]) then
                tokens:set(key, struct.pack(ROW, string.rep('0', 16), -NOW - LIMIT.SHUT_FILL_US, M.position))
            end
            return false
        end
    end
    return {store({key, expires_in_us, tail})}
end

if #REQ > 4 then
    local keys = {}
    for place = 1, #REQ, 4 do keys[#keys + 1] = REQ[place] end
    tokens:prefetch(keys)
    intents:prefetch(keys)
    floors:prefetch(keys)
end
local stored = {}
for place = 1, #REQ, 4 do
    stored[#stored + 1] = fill(REQ[place], REQ[place + 1], REQ[place + 2], REQ[place + 3])
end
return finish(stored)
