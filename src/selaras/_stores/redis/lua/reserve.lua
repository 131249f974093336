-- reserve: takes a directory entry, if it is free or held by the one to be replaced (P22)
-- uses: none
-- arguments: name, job, home, replacing
-- keys: directory
-- cost: O(1)        -- promise: atomic
-- flags: none

local directory = hash(K.directory)
local entry = directory:get(REQ[1])
if not entry or (REQ[4] ~= '' and entry[1] == REQ[4]) then
    entry = { REQ[2], REQ[3] }
    directory:set(REQ[1], entry)
end
return finish(entry[1], entry[2])
