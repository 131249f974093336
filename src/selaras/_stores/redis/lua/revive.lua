-- revive: retries a failed job by hand: a fresh budget, its history kept
-- uses: log, rows, cells, jobs
-- arguments: id
-- keys: none
-- cost: O(log N), and O(M) for M dependents        -- promise: atomic
-- flags: none

local directory = hash(K.directory)
local ended = index(K.ended)
local id = REQ[1]
local row = get_row(id)
if not row then
    return finish({ id, STATE.FAILED, 0, 0, REFUSAL.UNKNOWN_JOB })
end
if row[ROW.state] ~= STATE.FAILED then
    return finish(admission(id, row, false, false, REFUSAL.WRONG_STATE))
end
local unique = row.extra[EXTRA.unique]
local entry = unique ~= '' and directory:get(unique)
if entry and entry[1] ~= id then
    return finish(admission(entry[1], row, false, false, REFUSAL.WRONG_STATE))
end
touch(row)
hold_again(row)
ended:drop(row.number8 .. id)
row[ROW.attempt], row[ROW.lost] = 0, 0
row[ROW.unsure], row[ROW.left] = false, NOTHING
row[ROW.due_us], row[ROW.joined], row[ROW.keep_until_us], row[ROW.ended_us] = NOW, 0, 0, 0
row[ROW.reason], row[ROW.error], row[ROW.cancel_requested], row[ROW.strayed_us] = '', false, false, 0
row[ROW.expires_us] = row.extra[EXTRA.expires_in_us] > 0 and NOW + row.extra[EXTRA.expires_in_us] or 0
enter(row, EVENT.REVIVE)
begin_telling(row, 0)
wake_all()
return finish(admission(id, row))
