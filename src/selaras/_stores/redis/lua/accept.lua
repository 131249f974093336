-- accept: does what another partition decided; twice is once
-- uses: log, rows, cells, jobs
-- arguments: effects: kind, sender (-1: nobody), id, homes, and what the kind needs
-- keys: none
-- cost: O(log N) an effect, and O(K) for K keys of it        -- promise: atomic
-- flags: allow-oom

local accepted = hash(K.accepted)

-- Says whether an effect was not accepted before, and notes that it is. They come in the order of their ids.
local function is_news(sender, id)
    if sender < 0 then
        return true
    end
    local field = string.format('%d', sender)
    local last = accepted:get(field) or ''
    if id > last then
        accepted:set(field, id)
        return true
    end
    return false
end

for _, effect in ipairs(REQ) do
    local kind, a, b, c, d, e, f, g = effect[1], unpack(effect, 5)
    learn(effect[4])
    if is_news(effect[2], effect[3]) then
        if kind == 'register' then
            register(a, b, c, d, e)
        elseif kind == 'parted' then
            part(a, b, c, d, e, f)
        elseif kind == 'resolve' then
            local owner, keys, puts, stand_us, versions, closes = { a, b, c }, d, e, f, g, effect[12]
            if stand_us > 0 then
                cells_let_stand(owner, NOW + stand_us)
            else
                local put_of = {}
                for _, put in ipairs(puts) do
                    put_of[put[1]] = put
                end
                cells_set_floors(versions, closes)
                for _, key in ipairs(keys) do
                    cells_resolve(owner, key, put_of[key])
                end
            end
        elseif kind == 'void' then
            cells_invalidate(a, b, c, d, e)
        elseif kind == 'admit' then
            admit(a, b)
        elseif kind == 'free_unique' then
            free_directory(a, b, effect[2])
        elseif kind == 'hold_unique' then
            retake(a, b, c, d)
        elseif kind == 'meet_twin' then
            meet_twin(a, b, c, d)
        elseif kind == 'supersede' then
            supersede(a, b)
        else
            error('no effect is called ' .. kind)
        end
    end
end
wake_all()
return finish()
