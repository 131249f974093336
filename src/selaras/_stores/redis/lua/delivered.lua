-- delivered: drops effects that have been accepted elsewhere
-- uses: none
-- arguments: ids
-- keys: outbox
-- cost: O(log N) an effect        -- promise: atomic; twice is once
-- flags: allow-oom

for _, id in ipairs(REQ) do
    call('ZREMRANGEBYLEX', K.outbox, '[' .. id, '(' .. id .. '\255')
end
return finish()
