-- intents: those that stand on a key, in order of planting
-- uses: log, cells
-- keys: none
-- request: the key
-- reply: {key, home, job, fence, clean, until_us} each
-- cost: O(intents on the key); promise: atomic
-- flags: no-writes

return finish(cells_shown(REQ))
