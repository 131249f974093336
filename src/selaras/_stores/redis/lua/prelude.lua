-- prelude: the time, the partition's ledger, and rows that are read once and written once; every script begins with it
-- keys: meta

local call = redis.call

-- One field of numbers packed together: every script reads it and most write it, so its price is paid by all.
local ledger = (SCRIPT == 'greet' and redis.pcall or call)('HGET', K.meta, 'ledger') -- which mends one of another type
local M
if ledger and #ledger == LEDGER_SIZE then
    M = { struct.unpack(LEDGER, ledger) }
    local sum = M.epoch + M.counter + M.position + M.numbers
    if not (sum >= 0 and sum < 1e17 and sum % 1 == 0) then
        M = nil -- it was written over
    end
end
if not M then
    ledger, M = false, { struct.unpack(LEDGER, string.rep('\0', LEDGER_SIZE)) }
end
if not ledger and SCRIPT ~= 'greet' then
    return redis.error_reply('SELARASGONE the partition is not there: it was never opened, or its server lost its memory')
end
local OLD_POSITION, OLD_ID = M.position, M.event_id

local NOW = tonumber(ARGV[1])
if NOW == 0 then
    local time = call('TIME')
    NOW = time[1] * 1000000 + time[2]
end
if NOW < M.time then
    NOW = M.time -- it does not go back when the clock does (L8)
end

local SINCE_POSITION, SINCE_ID = tonumber(ARGV[3]), tonumber(ARGV[4])
local REQ = ARGV[5] and cmsgpack.unpack(ARGV[5])
local news, appended -- of the log, for scripts that use it: what came after a cursor; the events of this script

-- Returns the next fence, token, stamp or effect id: 16 hexadecimal digits that sort as text (P15).
local function next_counter()
    local low = M.counter + 1
    if low < NOW then
        low = NOW
    end
    M.counter = low
    return string.format('%03x%013x', M.epoch, low)
end

local next_event_base = tonumber(ARGV[2])

local function next_event_id()
    next_event_base = next_event_base + 1
    return next_event_base
end

local function next_number()
    M.numbers = M.numbers + 1
    return M.numbers
end

-- One command over any number of arguments, in chunks: Lua's stack holds 8,000. `step`: how many stand together.
local function call_many(command, key, arguments, step)
    local count = #arguments
    if count == 0 then
        return
    end
    if count <= 4000 then
        call(command, key, unpack(arguments))
        return
    end
    local chunk = 4000 - 4000 % (step or 1)
    for first = 1, count, chunk do
        call(command, key, unpack(arguments, first, math.min(first + chunk - 1, count)))
    end
end

-- Reads fields of a hash, however many.
local function read_many(key, fields)
    local count = #fields
    if count == 0 then
        return {}
    end
    if count <= 4000 then
        return call('HMGET', key, unpack(fields))
    end
    local found = {}
    for first = 1, count, 4000 do
        local some = call('HMGET', key, unpack(fields, first, math.min(first + 3999, count)))
        for i = 1, #some do
            found[first + i - 1] = some[i]
        end
    end
    return found
end

-- Orders text by its bytes; `<` would ask the locale of the server.
local function is_before(a, b)
    local i, length = 1, math.min(#a, #b)
    while i <= length do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then
            return x < y
        end
        i = i + 1
    end
    return #a < #b
end

-- A name with its length before it: no other name with its length begins with it.
local function sized(name)
    return struct.pack('>I4c0', #name, name)
end

-- == bytes that nobody here wrote

local is_damaged = false

-- Something stored is not what was written: the server's log says so, and housekeeping looks through all of it (`mend`).
local function damage(where)
    if not is_damaged then
        is_damaged = where
        redis.log(redis.LOG_WARNING, 'selaras: ' .. SCRIPT .. ' met bytes in ' .. where .. ' that were not written there by it')
    end
    return nil
end

-- The one place where stored MessagePack is read. Returns the row, or nil: it is none that `is_sound`.
local function read_packed(packed, is_sound, where)
    local is_read, row, more = pcall(cmsgpack.unpack, packed)
    if is_read and more == nil and is_sound(row) then
        return row
    end
    return damage(where)
end

-- Whether it is a fence, token, stamp or effect id.
local function is_id(value)
    return type(value) == 'string' and #value == 16 and not string.find(value, '[^0-9a-f]')
end

-- Whether it is a list of such.
local function each_is(list, is_sound)
    if type(list) ~= 'table' then
        return false
    end
    for i = 1, #list do
        if not is_sound(list[i]) then
            return false
        end
    end
    return true
end

-- The names of a text that was put together of sized ones: those that can be read.
local function unsized(text_of_all)
    local names, at, length = {}, 1, #text_of_all
    while at <= length do
        if at + 3 > length or at + 3 + struct.unpack('>I4', text_of_all, at) > length then
            damage('a page')
            break
        end
        names[#names + 1], at = struct.unpack('>I4c0', text_of_all, at)
    end
    return names
end

-- == the unit of work: what was changed is written at the end

local units, changed_units, endings = {}, {}, {}

-- Calls `ending` before the unit of work is written.
local function at_end(ending)
    endings[#endings + 1] = ending
end

-- What is to be written of a hash or a sorted set, by field or member: most that a script could change it does not.
local function changes_of(unit)
    local changed = unit.changed
    if not changed then
        changed = {}
        unit.changed = changed
        changed_units[#changed_units + 1] = unit
    end
    return changed
end

local Hash = { __index = false, taken = false, get = false, set = false, del = false, prefetch = false, flush = false }
Hash.__index = Hash

-- Returns the rows of a hash, one object a key. What they are `scripts.py` knows, and puts in here: whether they are packed,
-- what tells a sound one (text is any), and what to make of one that is damaged instead of nothing.
local function hash(key, is_packed, check, mend)
    local one = units[key]
    if not one then
        one = setmetatable({ key = key, is_packed = is_packed, check = check, mend = mend, rows = {}, changed = false }, Hash)
        units[key] = one
    end
    return one
end

-- Returns a row as it was read, or false. One that is damaged is mended, or goes.
function Hash:taken(field, row)
    local sound
    if self.is_packed then
        sound = read_packed(row, F[self.check], self.key)
    else
        sound = (not self.check or F[self.check](row)) and row or damage(self.key)
    end
    if sound == nil then
        local mend = self.mend and F[self.mend]
        self.rows[field], changes_of(self)[field] = false, true
        sound = mend and mend(field) or false
    end
    self.rows[field] = sound
    return sound
end

-- Returns a row, or false.
function Hash:get(field)
    local row = self.rows[field]
    if row == nil then
        row = call('HGET', self.key, field)
        if row then
            return self:taken(field, row)
        end
        self.rows[field] = row
    end
    return row
end

function Hash:set(field, row)
    self.rows[field] = row
    changes_of(self)[field] = true
end

function Hash:del(field)
    self.rows[field] = false
    changes_of(self)[field] = true
end

-- Reads rows that are going to be asked for in one command.
function Hash:prefetch(fields)
    local rows, missing = self.rows, {}
    for i = 1, #fields do
        if rows[fields[i]] == nil then
            missing[#missing + 1] = fields[i]
        end
    end
    local found = read_many(self.key, missing)
    local is_any = not self.check
    for i = 1, #missing do
        local row = found[i]
        if is_any or not row then
            rows[missing[i]] = row
        elseif rows[missing[i]] == nil then
            self:taken(missing[i], row)
        end
    end
end

function Hash:flush()
    local changed = self.changed
    if not changed then
        return false
    end
    self.changed = false
    local rows, sets, dels = self.rows, {}, {}
    for field in pairs(changed) do
        local row = rows[field]
        if row then
            sets[#sets + 1] = field
            sets[#sets + 1] = self.is_packed and cmsgpack.pack(row) or row
        else
            dels[#dels + 1] = field
        end
    end
    call_many('HSET', self.key, sets, 2)
    call_many('HDEL', self.key, dels)
    return true
end

local Index = { __index = false, add = false, drop = false, has = false, flush = false }
Index.__index = Index

-- Returns a sorted set whose changes are gathered; flush it before its ranges are read.
local function index(key)
    local one = units[key]
    if not one then
        one = setmetatable({ key = key, changed = false }, Index)
        units[key] = one
    end
    return one
end

function Index:add(member, score)
    changes_of(self)[member] = score or '0' -- numbers are printed for each command
end

function Index:drop(member)
    changes_of(self)[member] = false
end

-- Whether a member is there.
function Index:has(member)
    local score
    if self.changed then
        score = self.changed[member]
    end
    if score == nil then
        score = call('ZSCORE', self.key, member)
    end
    return score and true
end

function Index:flush()
    local changed = self.changed
    if not changed then
        return false
    end
    self.changed = false
    local adds, drops = {}, {}
    for member, score in pairs(changed) do
        if score then
            adds[#adds + 1] = score
            adds[#adds + 1] = member
        else
            drops[#drops + 1] = member
        end
    end
    call_many('ZADD', self.key, adds, 2)
    call_many('ZREM', self.key, drops)
    return true
end

-- == hints

local STEM = string.sub(K.meta, 1, -5) -- what every key and channel of the partition begins with
local bells = {}

-- Rings a bell, once the script has done its work.
local function ring(address)
    if address ~= '' then
        bells[#bells + 1] = address
    end
end

local function publish(channel, message)
    call(M.sharded == 1 and 'SPUBLISH' or 'PUBLISH', STEM .. channel, message)
end

local function flush()
    for i = 1, #endings do
        endings[i]()
    end
    local wrote = false
    for i = 1, #changed_units do
        wrote = changed_units[i]:flush() or wrote
    end
    if is_damaged then
        call('HSETNX', K.meta, 'mend', 'jobs 0')
        call('HSET', K.meta, 'damaged', string.format('%.0f ', NOW) .. is_damaged) -- for the doctor
    end
    if wrote or M.position ~= OLD_POSITION or struct.pack(LEDGER, unpack(M)) ~= ledger then
        M.time = NOW -- from here on; a script that wrote nothing was nowhere in time
        call('HSET', K.meta, 'ledger', struct.pack(LEDGER, unpack(M)))
    end
end

-- Writes all, rings, and returns the reply: the news, if the script has a log, and what the verb adds.
local function finish(...)
    if not READS_ONLY then
        flush()
        for i = 1, #bells do
            publish('bell:' .. bells[i], '')
        end
        if M.position ~= OLD_POSITION then
            local said = { string.format('%.0f', M.position) }
            if #appended <= LIMIT.PUSHED_MOST then -- who has heard all before them need not ask
                said[2] = '\n' .. struct.pack('>ddd', OLD_POSITION, OLD_ID, M.epoch)
                for i = 1, #appended do
                    said[i + 2] = sized(appended[i])
                end
            end
            publish('news', table.concat(said))
        end
    end
    if news then
        return { news(SINCE_POSITION, SINCE_ID), ... }
    end
    return { ... }
end
