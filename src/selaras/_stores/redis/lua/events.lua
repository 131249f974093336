-- events: the log from the caller's cursor on
-- uses: log
-- keys: none
-- cost: O(events told); promise: atomic
-- flags: no-writes

return finish()
