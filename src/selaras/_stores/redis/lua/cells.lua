-- cells: the shared tier: in each key's place an entry, or intents, or a token, or nothing (P7-P14)
-- uses: log
-- keys: entries, intents, tokens, floors, owners, falls
-- made: when it is asked for
-- cost: O(1) a key and call; a void O(intents on the key)
--
-- entries  key -> stamp, position, until_us, then the tail: 4 byte size, 8 byte blob id, msgpack [checksum, version, family, tags, note]
-- tokens   key -> token, until_us, the position it was granted at; until_us below 0: nobody has it, and a tag or family of the
--          key was open when last somebody would have filled it
-- floors   key -> [version | false, closed_until_us]; with a version it ends FLOOR_US after that
-- intents  key -> list of intents in order of planting, see the names of their fields below
-- owners   every intent once, by owner; falls: those that fall by themselves, by when
-- An owner is {home, job, fence}; a put is {key, expires_in_us, tail}.

local entries = hash(K.entries)
local tokens = hash(K.tokens)
local floors = hash(K.floors)
local intents = hash(K.intents)
local owners = index(K.owners)
local falls = index(K.falls)

local HOME, JOB, FENCE, PLANTED_US, PLANTED_AT, CLEAN, PREIMAGE, UNTIL_US, EPOCH = INTENT.home, INTENT.job, INTENT.fence, INTENT.planted_us, INTENT.planted_at, INTENT.clean, INTENT.preimage, INTENT.until_us, INTENT.epoch
local ROW, ROW_HEAD, TAIL_HEAD = '>c16dd', 32, 12

local function owner_prefix(home, job) return string.format('%d:%d:', home, #job) .. job end

-- The owner of an attempt that is not known any more.
local SOMEBODY = '0000000000000000'

-- The position and the end of an entry, if it is one: of what was written over anything may be missed, and nothing may be served.
local function is_entry(row)
    if #row <= ROW_HEAD + TAIL_HEAD then return false end
    local stamp, position, until_us = struct.unpack(ROW, row)
    if is_id(stamp) and position >= 0 and position <= M.position and until_us >= 0 then return position, until_us end
    return false
end

local function is_token(row)
    if #row ~= ROW_HEAD then return false end
    local token, until_us = struct.unpack(ROW, row)
    return is_id(token) and until_us - NOW < 86400000000 -- a day
end

local function is_text(value) return type(value) == 'string' end

local function is_tail(tail)
    return type(tail) == 'table' and is_text(tail[3]) and each_is(tail[4], is_text) and (tail[2] == nil or is_id(tail[2]))
end

-- The tail of a sound row, unpacked; nil: it was written over.
local function tail_of(row) return read_packed(row:sub(ROW_HEAD + TAIL_HEAD + 1), is_tail, 'an entry') end

local function are_intents(list) return each_is(list, IS_INTENT) end

-- Home and job of a member of `owners` or `falls`, and the key; nil: it was written over.
local function unowned(member)
    local home, length, rest = member:match('^(%d+):(%d+):(.*)$')
    if not rest or tonumber(length) > #rest then return damage('owners') end
    return tonumber(home), rest:sub(1, length), rest:sub(length + 1)
end

-- Who stands in `owners`, by key: at most so many are looked at, and once a script. Returns also whether these are all.
local owners_by_key, are_all_owners
local function owners_of(key)
    if not owners_by_key then
        owners:flush()
        local found = call('ZRANGE', K.owners, '-', '(' .. ABSENT, 'BYLEX', 'LIMIT', 0, LIMIT.OWNERS_MOST)
        owners_by_key = {}
        for _, member in ipairs(found) do
            local home, job, its = unowned(member)
            if home then
                owners_by_key[its] = owners_by_key[its] or {}
                table.insert(owners_by_key[its], {home, job})
            end
        end
        are_all_owners = #found < LIMIT.OWNERS_MOST
    end
    return owners_by_key[key] or {}, are_all_owners
end

-- The marks are not what they were: what intents open is open.
local function cells_open_again()
    owners_of('')
    for key in pairs(owners_by_key) do
        if opened_by(key) and intents:get(key) then log_open(key) end
    end
end

-- What is made of a list of intents that was written over: whoever had one there has one yet, for nothing may be stored
-- there before his end. Where nobody is found, one stands for a grace; a longer one where not everybody was looked at.
local function mend_intents(key)
    local here = {}
    local found, are_all = owners_of(key)
    for place, owner in ipairs(found) do
        here[place] = {owner[1], owner[2], SOMEBODY, NOW, M.position, false, false, 0, M.epoch}
    end
    if #here == 0 or not are_all then
        local member, until_us = owner_prefix(M.index, '') .. key, NOW + LIMIT.INTENT_GRACE_US * (are_all and 1 or 100)
        here[#here + 1] = {M.index, '', SOMEBODY, NOW, M.position, false, false, until_us, M.epoch}
        owners:add(member)
        falls:add(member, until_us)
    end
    entries:del(key)
    return here
end

-- What is made of a floor that was written over: nothing is stored there until whatever it kept out is long over.
local function mend_floor(key)
    entries:del(key)
    return {false, NOW + LIMIT.INTENT_GRACE_US}
end

-- Whether there is a floor, and a value of this version lies below it.
local function is_below(version, floor) return floor and (not version or version < floor) end

local function row_of(position, until_us, tail)
    return struct.pack(ROW, next_counter(), position, until_us) .. tail
end

-- The ids of values that this script stored, each with the stamp of its entry; the news carry them, and then the caller
-- writes the values into their keys. Written before, a value that is refused would cost the one that stands there.
local stored_ids
local news_of_log = news

function news(position, event_id)
    local told = news_of_log(position, event_id)
    told[6] = stored_ids
    return told
end

-- Store a value. Returns its position and its stamp.
local function store(put)
    local expires_in_us = put[2]
    local row = row_of(M.position, expires_in_us > 0 and NOW + expires_in_us or 0, put[3])
    entries:set(put[1], row)
    stored_ids = stored_ids or {}
    stored_ids[#stored_ids + 1] = put[3]:sub(5, TAIL_HEAD)
    stored_ids[#stored_ids + 1] = row:sub(1, 16)
    return M.position, row:sub(1, 16)
end

-- The entry of a key as a reply carries it: what is left of its time, and its row; nil if its time is over, a tag or its
-- family was voided since, or it is below the floor.
local function valid(key)
    local row = entries:get(key)
    if not row then return nil end
    local _, position, until_us = struct.unpack(ROW, row)
    if until_us > 0 and until_us <= NOW then return nil end
    local floor = floors:get(key)
    local below = floor and floor[1]
    if below or log_may_void(position) then
        local tail = tail_of(row)
        if not tail then entries:del(key) end
        if not tail or log_voided_after(position, tail[3], tail[4]) or is_below(tail[2], below) then return nil end
    end
    return {until_us > 0 and until_us - NOW or 0, row}
end

-- Where the intent of the owner's job stands in a list, whatever its attempt.
local function place_of(here, owner)
    for place, intent in ipairs(here or {}) do
        if intent[JOB] == owner[2] and intent[HOME] == owner[1] then return place end
    end
end

-- The list of intents on a key, and where the owner's own one stands there.
local function own_of(owner, key)
    local here = intents:get(key)
    local place = place_of(here, owner)
    if place and (here[place][FENCE] == owner[3] or here[place][FENCE] == SOMEBODY) then return here, place end
    return here, nil
end

local function is_clean(intent) return intent[CLEAN] and intent[EPOCH] == M.epoch end

local function spoil(intent) intent[CLEAN], intent[PREIMAGE] = false, false end

local function remove(here, place, key)
    local intent = table.remove(here, place)
    local member = owner_prefix(intent[HOME], intent[JOB]) .. key
    owners:drop(member)
    if intent[UNTIL_US] > 0 or intent[FENCE] == SOMEBODY then falls:drop(member) end
    if #here > 0 then
        intents:set(key, here)
    else
        intents:del(key)
        log_close(key)
    end
end

-- Whatever was known of the key is not to be trusted (L6).
local function cells_void(key)
    log_void(key)
    entries:del(key)
    tokens:del(key)
    local here, touched = intents:get(key), false
    for _, intent in ipairs(here or {}) do
        touched = touched or intent[CLEAN] or intent[PREIMAGE]
        spoil(intent)
    end
    if touched then intents:set(key, here) end
end

-- Close a key, tag or family to fills until then (P13).
local function cells_close(key, until_us)
    local floor = floors:get(key) or {false, 0}
    floor[2] = math.max(floor[2], until_us)
    floors:set(key, floor)
    if key:sub(1, 1) == OPENING and key ~= OPENING then
        cells_close(OPENING, until_us) -- under no name at all stands until when any is closed: most fills ask no further
    end
end

-- Raise version floors, and close keys to fills for a while (P13).
local function cells_set_floors(versions, closes)
    for _, pair in ipairs(versions) do
        local floor = floors:get(pair[1]) or {false, 0}
        if not floor[1] or floor[1] < pair[2] then floor[1] = pair[2] end
        floor[2] = math.max(floor[2], NOW) -- from here on it counts how long it stands
        floors:set(pair[1], floor)
    end
    for _, pair in ipairs(closes) do cells_close(pair[1], NOW + pair[2]) end
end

-- Void names, set floors, close fills.
local function cells_invalidate(keys, tags, families, versions, closes)
    if #keys > 1 then intents:prefetch(keys) end
    for _, key in ipairs(keys) do cells_void(key) end
    for _, tag in ipairs(tags) do log_append(SCOPE.TAG, tag) end
    for _, family in ipairs(families) do log_append(SCOPE.FAMILY, family) end
    cells_set_floors(versions, closes)
end

-- Put the owner's intent in the key's place (L3). Returns the pre-image as a reply carries it, if it has one.
local function cells_plant(owner, key)
    local here = intents:get(key)
    local former = place_of(here, owner)
    if former and here[former][FENCE] == owner[3] then -- invalidated by its own attempt: what it puts later is still the latest
        local clean = here[former][CLEAN]
        cells_void(key)
        here[former][CLEAN] = clean
        intents:set(key, here)
        return nil
    end
    local stored = not here and valid(key) or nil
    cells_void(key)
    local alone = not here
    here = here or {}
    if former then remove(here, former, key) end -- of an earlier attempt (P18)
    here[#here + 1] = {owner[1], owner[2], owner[3], NOW, M.position, alone, stored and stored[2] or false, 0, M.epoch}
    intents:set(key, here)
    owners:add(owner_prefix(owner[1], owner[2]) .. key)
    log_open(key)
    return stored
end

-- Whether a later attempt of the same job has its intent there: the owner's lease is lost.
local function cells_outlived(owner, key)
    local here = intents:get(key)
    local place = place_of(here, owner)
    return place ~= nil and here[place][FENCE] > owner[3]
end

-- Remove the owner's intent; store `put` where it may be (L5). Returns position and stamp of a stored value.
local function cells_resolve(owner, key, put)
    local here, place = own_of(owner, key)
    if not place then
        cells_void(key) -- P9
        return nil
    end
    local intent, sole = here[place], #here == 1
    remove(here, place, key)
    if opened_by(key) then
        cells_void(key) -- what was loaded while it stood may be what the writer has replaced
        return nil
    end
    if not put then return nil end
    if sole and is_clean(intent) then
        local floor = floors:get(key)
        local below = floor and floor[1]
        local tail = (below or log_may_void(intent[PLANTED_AT])) and cmsgpack.unpack(put[3]:sub(TAIL_HEAD + 1))
        if not tail or not (is_below(tail[2], below) or log_voided_after(intent[PLANTED_AT], tail[3], tail[4])) then
            return store(put)
        end
    end
    cells_void(key)
    return nil
end

-- Undo a plant whose attempt never started: the pre-image returns, if nothing touched the key (P10).
local function cells_restore(owner, key)
    local here, place = own_of(owner, key)
    local intent = place and here[place]
    cells_resolve(owner, key, nil)
    local row = intent and intent[EPOCH] == M.epoch and intent[PREIMAGE]
    if not row or not is_entry(row) then return end
    if log_may_void(intent[PLANTED_AT]) then
        local tail = tail_of(row)
        if not tail or log_voided_after(intent[PLANTED_AT], tail[3], tail[4]) then return end
    end
    local _, _, until_us = struct.unpack(ROW, row)
    entries:set(key, row_of(M.position, until_us, row:sub(ROW_HEAD + 1)))
end

-- Keys with an intent of the owner's job, in order of key.
local function keys_of_job(home, job)
    owners:flush()
    local prefix, keys = owner_prefix(home, job), {}
    for place, member in ipairs(call('ZRANGE', K.owners, '[' .. prefix, '(' .. prefix .. ABSENT, 'BYLEX')) do
        keys[place] = member:sub(#prefix + 1)
    end
    if #keys > 1 then intents:prefetch(keys) end
    local standing = {}
    for _, key in ipairs(keys) do
        if place_of(intents:get(key), {home, job}) then
            standing[#standing + 1] = key
        else
            owners:drop(prefix .. key)
        end
    end
    return standing
end

-- Keys on which this attempt's intents stand, in order of key.
local function cells_keys_of(owner)
    local keys = {}
    for _, key in ipairs(keys_of_job(owner[1], owner[2])) do
        local _, place = own_of(owner, key)
        if place then keys[#keys + 1] = key end
    end
    return keys
end

-- The attempt was lost: its intents wait for the next one, unclean (P18). `until_us`: they fall by themselves then.
local function cells_pass_on(owner, until_us)
    local prefix = owner_prefix(owner[1], owner[2])
    for _, key in ipairs(keys_of_job(owner[1], owner[2])) do
        local here = intents:get(key)
        local intent = here[place_of(here, owner)]
        if intent[FENCE] <= owner[3] then
            spoil(intent)
            if until_us and intent[UNTIL_US] == 0 then
                intent[UNTIL_US] = until_us
                falls:add(prefix .. key, until_us)
            end
            intents:set(key, here)
        end
    end
end

-- A write of the owner may still land: its intent stays, unclean; without one the key is voided (P9).
local function cells_leave(owner, key)
    local here, place = own_of(owner, key)
    if not place then
        cells_void(key)
        return
    end
    spoil(here[place])
    intents:set(key, here)
end

-- No attempt follows the owner's: intents it left behind fall, and void, at `until_us` (P18).
local function cells_let_stand(owner, until_us) cells_pass_on(owner, until_us) end

-- Intents of jobs at home here that are over, and that nothing lets fall: what ended them broke off. They fall by themselves.
local function cells_let_forgotten_fall(key, is_over)
    local here, is_any = intents:get(key), false
    for _, intent in ipairs(here or {}) do
        if intent[HOME] == M.index and intent[UNTIL_US] == 0 and is_over(intent[JOB]) then
            spoil(intent)
            intent[UNTIL_US], is_any = NOW + LIMIT.INTENT_GRACE_US, true
            local member = owner_prefix(intent[HOME], intent[JOB]) .. key
            owners:add(member)
            falls:add(member, intent[UNTIL_US])
        end
    end
    if is_any then
        damage('intents')
        intents:set(key, here)
    end
end

-- Void the keys of intents whose grace is over. Returns how many.
local function cells_drop_fallen(limit)
    falls:flush()
    local found = {}
    for _, member in ipairs(call('ZRANGE', K.falls, '(0', NOW, 'BYSCORE', 'LIMIT', 0, math.max(limit, 1000))) do
        local home, job, key = unowned(member)
        if home then
            found[#found + 1] = {key, home, job, member}
        else
            falls:drop(member)
        end
    end
    table.sort(found, function(a, b)
        if a[1] ~= b[1] then return is_before(a[1], b[1]) end
        if a[2] ~= b[2] then return a[2] < b[2] end
        return is_before(a[3], b[3])
    end)
    for place = 1, math.min(limit, #found) do
        local key, home, job, member = unpack(found[place])
        local here = intents:get(key)
        local at = place_of(here, {home, job})
        if at then remove(here, at, key) end
        falls:drop(member)
        cells_void(key)
    end
    return math.min(limit, #found)
end

-- Intents of other homes that have stood since `planted_before_us`, in order of key, as `cells_shown` tells them.
local function cells_orphans(planted_before_us)
    owners:flush()
    local own, keys, seen, found = M.index .. ':', {}, {}, {}
    for _, range in ipairs({{'-', '(' .. own}, {'[' .. M.index .. ';', '(' .. ABSENT}}) do
        for _, member in ipairs(call('ZRANGE', K.owners, range[1], range[2], 'BYLEX', 'LIMIT', 0, 1000)) do
            local _, _, key = unowned(member)
            if not key then
                owners:drop(member)
            elseif not seen[key] then seen[key], keys[#keys + 1] = true, key end
        end
    end
    table.sort(keys, is_before)
    if #keys > 1 then intents:prefetch(keys) end
    for _, key in ipairs(keys) do
        for _, intent in ipairs(intents:get(key) or {}) do
            if intent[HOME] ~= M.index and intent[PLANTED_US] <= planted_before_us then
                found[#found + 1] = {key, intent[HOME], intent[JOB], intent[FENCE], is_clean(intent) and 1 or 0, intent[UNTIL_US]}
            end
        end
    end
    return found
end

-- The intents on a key, in order of planting, as a reply carries them.
local function cells_shown(key)
    local shown = {}
    for place, intent in ipairs(intents:get(key) or {}) do
        shown[place] = {key, intent[HOME], intent[JOB], intent[FENCE], is_clean(intent) and 1 or 0, intent[UNTIL_US]}
    end
    return shown
end

-- Free what no reader can meet any more: values past their end, tokens that ran out, fills open again. Goes round the
-- keys a piece at a call; where much is dead it takes more of them. Returns whether it may have left as much.
local function cells_drop_dead()
    local most = 10 -- pieces
    local function sweep(name, key, rows, is_dead)
        rows:flush() -- what it holds back must not be taken for dead
        local field = 'sweep:' .. name
        local cursor = call('HGET', K.meta, field) or '0'
        if not cursor:match('^%d+$') then cursor = '0' end
        local count = math.max(100, math.min(1000, math.floor(call('HLEN', key) / 500)))
        local begun, rounds = cursor, 0
        repeat
            local page = call('HSCAN', key, cursor, 'COUNT', count)
            local dead = 0
            cursor, rounds = page[1], rounds + 1
            for place = 1, #page[2], 2 do
                if page[2][place] ~= ABSENT and is_dead(page[2][place + 1], page[2][place]) then
                    rows:del(page[2][place])
                    dead = dead + 1
                end
            end
        until cursor == '0' or rounds == most or dead * 8 < #page[2]
        if cursor ~= begun then call('HSET', K.meta, field, cursor) end
        return rounds == most and cursor ~= '0'
    end
    local function is_over(row)
        if not is_entry(row) then return true end
        local _, _, until_us = struct.unpack(ROW, row)
        return until_us > 0 and until_us <= NOW
    end
    local function is_given_up(row)
        if not is_token(row) then return true end
        local _, until_us = struct.unpack(ROW, row)
        return math.abs(until_us) <= NOW
    end
    local function is_open(row, key)
        local floor = read_packed(row, IS_FLOOR, 'floors') or floors:get(key)
        local is_over = floor[2] + (floor[1] and LIMIT.FLOOR_US or 0) <= NOW
        if is_over and floor[1] then entries:del(key) end -- perhaps it kept it from being served
        return is_over
    end
    local are_entries_left = sweep('entries', K.entries, entries, is_over)
    local are_tokens_left = sweep('tokens', K.tokens, tokens, is_given_up)
    return sweep('floors', K.floors, floors, is_open) or are_entries_left or are_tokens_left
end

-- Whoever had an intent has one yet: the hash of them was lost.
local function cells_stand_again()
    owners_of('')
    for key in pairs(owners_by_key) do intents:set(key, mend_intents(key)) end
end

-- Whoever has an intent is listed again: a list of them was lost.
local function cells_list_again()
    local page = call('HSCAN', K.intents, '0', 'COUNT', LIMIT.OWNERS_MOST)
    for place = 1, #page[2], 2 do
        local key = page[2][place]
        for _, intent in ipairs(key ~= ABSENT and intents:get(key) or {}) do
            local member = owner_prefix(intent[HOME], intent[JOB]) .. key
            owners:add(member)
            if intent[UNTIL_US] > 0 then falls:add(member, intent[UNTIL_US]) end
        end
    end
end

-- Let the keys be there; what was lost with them is told by the others, as far as it can be.
local function cells_create(is_new)
    for _, key in ipairs({K.entries, K.tokens}) do let_hash_be(key) end
    if not let_hash_be(K.floors) and not is_new then
        cells_close(EVERYTHING, NOW + LIMIT.INTENT_GRACE_US) -- by then the latest datastore has what they kept from being stored
    end
    local are_listed = let_set_be(K.owners, 0)
    are_listed = let_set_be(K.falls, 0) and are_listed
    local do_stand = let_hash_be(K.intents)
    if not do_stand then
        cells_stand_again()
    elseif not are_listed then
        cells_list_again()
    end
end

-- A new epoch: no entry and no token of the old one is trusted (P20). Intents say themselves of which one they are.
local function cells_forget()
    call('UNLINK', K.entries, K.tokens)
    for _, key in ipairs({K.entries, K.tokens}) do call('HSET', key, ABSENT, '') end
end

-- The marks were lost: nobody knows of which tags and families the last events are not known any more. A new epoch
-- begins, and no value of the old one is served.
local function cells_lose_marks()
    damage('marks')
    log_begin_epoch(M.epoch + 1)
    call('HSET', K.meta, 'epoch', M.epoch)
    cells_forget()
    M.last_mark = M.position
    cells_open_again()
end
