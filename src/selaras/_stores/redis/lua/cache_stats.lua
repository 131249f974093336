-- cache_stats: count the shared tier; where it is large, judged by a sample of it
-- uses: log, cells
-- keys: none
-- reply: entries, their bytes, intents, tokens, position, length of the log, epoch
-- cost: O(1), some milliseconds at most; promise: atomic
-- flags: no-writes

local EXACT, SAMPLE = 2000, 1000

-- Count those of a hash that `measure` gives a size. Returns how many, and the sum of their sizes.
local function count(key, measure)
    local length = call('HLEN', key) - 1
    local rows = length <= EXACT and call('HGETALL', key) or call('HRANDFIELD', key, SAMPLE, 'WITHVALUES')
    local seen, counted, sum = 0, 0, 0
    for place = 1, #rows, 2 do
        if rows[place] ~= ABSENT then
            local size = measure(rows[place + 1])
            seen = seen + 1
            if size then counted, sum = counted + 1, sum + size end
        end
    end
    local share = seen > 0 and length / seen or 0
    return math.floor(counted * share + 0.5), math.floor(sum * share + 0.5)
end

local live, bytes = count(K.entries, function(row)
    if not is_entry(row) then
        return false
    end
    local _, _, until_us, size = struct.unpack(ROW .. 'I4', row)
    return (until_us == 0 or until_us > NOW) and size
end)
local granted = count(K.tokens, function(row)
    return is_token(row) and select(2, struct.unpack(ROW, row)) > NOW and 0
end)
local standing = call('ZCARD', K.owners) - 1
return finish({live, bytes, standing, granted, M.position, M.position - M.before_position, M.epoch})
