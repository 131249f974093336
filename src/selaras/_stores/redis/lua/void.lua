-- void: void keys on which no intent stands, in few commands; where one does nothing is done, and `invalidate` is to be asked
-- uses: log
-- keys: entries, intents, tokens
-- request: keys
-- reply: 1 if it was done
-- cost: O(1) a key; promise: atomic
-- flags: allow-oom

for _, standing in ipairs(read_many(K.intents, REQ)) do
    if standing then return finish(0) end
end
for place = 1, #REQ do
    if opened_by(REQ[place]) then return finish(0) end
end
for place = 1, #REQ do log_append(SCOPE.KEY, REQ[place]) end
call_many('HDEL', K.entries, REQ)
call_many('HDEL', K.tokens, REQ)
return finish(1)
