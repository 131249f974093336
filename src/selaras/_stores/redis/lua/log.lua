-- log: the partition's events in order, and where the last one of each tag and family stands
-- keys: log, marks
-- cost: O(1) an event; news O(events told); trim O(events trimmed), bounded
--

-- log    list of events: position, event id, digit of the scope, name. It begins with the last one that was forgotten.
-- marks  position of the last event of each tag and family

local EVENT_HEAD = '>dd'
local ABSENT = '\255' -- a field or member that lets a key exist: no name has this byte

local events -- those of this script

local function log_flush()
    call_many('RPUSH', K.log, events)
    appended, events = events, nil
end

-- Void `name`, for everybody, from here on.
local function log_append(scope, name)
    local position = M.position + 1
    M.position, M.event_id = position, next_event_id()
    if not events then
        events = {}
        at_end(log_flush)
    end
    events[#events + 1] = struct.pack(EVENT_HEAD, position, M.event_id) .. scope .. name
    if scope ~= SCOPE.KEY then
        call('ZADD', K.marks, 'GT', position, scope .. ':' .. name)
        M.last_mark = math.max(M.last_mark, position)
    end
end

-- Go on in a new epoch, behind an event that no other log has: so an epoch is known by its events, even if its number is
-- given twice.
local function log_begin_epoch(epoch)
    M.epoch = epoch
    log_append(SCOPE.KEY, '')
end

-- The tag or family that stands under a key, and its scope; nil: it is a key like others.
local function opened_by(key)
    if key:byte() ~= 31 then return nil end
    local scope, name = key:match('^\31%d+:([12]):(.*)$')
    return name, tonumber(scope)
end

-- The key under which a tag or family stands here; of no tag and no family, what all of those begin with.
local OPENING = '\31'
local function open_name(scope, name)
    return string.format('%s%d:%d:', OPENING, M.index, scope) .. name
end
local EVERYTHING = OPENING .. '*' -- closed to fills, it closes all

-- Void a key, or the tag or family that it opens.
local function log_void(key)
    local name, scope = opened_by(key)
    if name then log_append(scope, name) else log_append(SCOPE.KEY, key) end
end

-- An intent stands on a key: a tag or family that it opens has no last event for now (L14).
local function log_open(key)
    local name, scope = opened_by(key)
    if not name then return end
    call('ZADD', K.marks, LIMIT.OPEN_POSITION, scope .. ':' .. name)
    M.last_mark = LIMIT.OPEN_POSITION
end

-- No intent stands on a key any more. The caller voids what it opened.
local function log_close(key)
    local name, scope = opened_by(key)
    if not name then return end
    call('ZADD', K.marks, M.position, scope .. ':' .. name)
    if call('ZCOUNT', K.marks, LIMIT.OPEN_POSITION, '+inf') == 0 then M.last_mark = M.position end
end

-- Whether the marks must be asked about something that was true at `position`.
local function log_may_void(position)
    return position < M.last_mark or position < M.tag_floor
end

-- Whether a position may be one: an event's, or that of what is open. Those of marks may have been written over.
local function is_mark(at) return at >= 0 and at % 1 == 0 and (at <= M.position or at == LIMIT.OPEN_POSITION) end

-- Whether the family or one of the tags has an event after `position` (P12), or one of which nobody knows when.
local function log_voided_after(position, family, tags)
    if not log_may_void(position) then return false end
    if #tags > 0 and position < M.tag_floor then return true end
    local names = {SCOPE.FAMILY .. ':' .. family}
    for _, tag in ipairs(tags) do names[#names + 1] = SCOPE.TAG .. ':' .. tag end
    for first = 1, #names, 4000 do
        local last = math.min(first + 3999, #names)
        for _, mark in ipairs(call('ZMSCORE', K.marks, unpack(names, first, last))) do
            local at = mark and tonumber(mark)
            if at and (at > position or not is_mark(at)) then return true end
        end
    end
    return false
end

-- Whether somebody writes the whole family, or all of one of the tags.
local function log_is_open(family, tags)
    return M.last_mark == LIMIT.OPEN_POSITION and log_voided_after(LIMIT.OPEN_POSITION - 1, family, tags)
end

-- What came after the caller's cursor: tail, epoch, whether to reset, and the events, from the one at the cursor on.
function news(position, event_id)
    local behind = M.position - position
    if behind == 0 and event_id == M.event_id then return {M.position, M.event_id, M.epoch, 0, {}} end
    if position > 0 and position == OLD_POSITION and event_id == OLD_ID and behind <= LIMIT.NEWS_MOST then
        table.insert(appended, 1, '') -- in the place of the one at the cursor
        return {M.position, M.event_id, M.epoch, 0, appended}
    end
    if position > 0 and behind > 0 and behind <= LIMIT.NEWS_MOST then
        local told = call('LRANGE', K.log, -behind - 1, -1)
        if told[1] and told[1]:sub(1, 16) == struct.pack(EVENT_HEAD, position, event_id) then
            return {M.position, M.event_id, M.epoch, 0, told}
        end
    end
    return {M.position, M.event_id, M.epoch, 1, {}}
end

-- Forget the oldest events beyond the length kept, so many at once at most. Returns how many.
local function log_trim()
    local last = math.min(M.position - LIMIT.LOG_LENGTH, M.before_position + 10000)
    local trimmed = last - M.before_position
    if trimmed <= 0 then return 0 end
    local forgotten = {}
    for _, name in ipairs(call('ZRANGE', K.marks, '(0', last, 'BYSCORE', 'LIMIT', 0, 20000)) do
        if name:sub(1, 2) == SCOPE.TAG .. ':' then forgotten[#forgotten + 1] = name end
    end
    if #forgotten > 0 then
        M.tag_floor = tonumber(call('ZSCORE', K.marks, forgotten[#forgotten]))
        call_many('ZREM', K.marks, forgotten)
    end
    call('LTRIM', K.log, trimmed, -1)
    M.before_position = last
    return trimmed
end

-- Let the log be there; it begins with the last event that was forgotten.
local function log_create()
    M.before_position = M.position
    call('RPUSH', K.log, struct.pack(EVENT_HEAD, M.position, M.event_id))
end

-- Let a key be there that must always be. Of another type it is somebody else's, and goes. Returns whether it was there.
local function let_be(key, found, ...)
    if type(found) == 'string' then return true end
    if type(found) == 'table' then call('UNLINK', key) end
    if ledger then damage(key) end -- else it may be new
    call(...)
    return false
end

local function let_hash_be(key) return let_be(key, redis.pcall('HGET', key, ABSENT), 'HSET', key, ABSENT, '') end
local function let_set_be(key, score) return let_be(key, redis.pcall('ZSCORE', key, ABSENT), 'ZADD', key, score, ABSENT) end
