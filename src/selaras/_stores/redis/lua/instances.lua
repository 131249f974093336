-- instances: every instance that holds a lease, each with its place in the order of enrolling
-- uses: none
-- keys: holders
-- cost: O(I) for I instances        -- promise: one moment
-- flags: no-writes

local found = {}
for _, packed in ipairs(call('HVALS', K.holders)) do
    if packed ~= '' then
        local holder = read_packed(packed, IS_HOLDER, 'holders')
        if holder and holder[HOLDER.instance] ~= '' then
            found[#found + 1] = { holder[HOLDER.code], holder[HOLDER.instance] }
        end
    end
end
return finish(found)
