-- adopt: takes jobs over as they stood in another store
-- uses: log, rows, cells, jobs
-- arguments: an epoch that the other store has not reached, and the jobs
-- reply: of each 1, or 0: it was here already
-- keys: none
-- cost: O(log N) a job, and O(M) for M others that wait for it        -- promise: atomic; twice is once
-- flags: none

local directory = hash(K.directory)
local expiry = index(K.expiry)
local ended = index(K.ended)
local epoch, asked_for, adopted = REQ[1], REQ[2], {}
if M.epoch < epoch then
    log_begin_epoch(epoch) -- fences grow (P15)
    call('HSET', K.meta, 'epoch', epoch)
    cells_forget()
end

local function adopt_one(one)
    local id = one[ADOPTED.id]
    if get_row(id) then
        return 0
    end
    M.numbers = math.max(M.numbers, one[ADOPTED.place], one[ADOPTED.joined])
    local row = new_row(id, one[ADOPTED.blob])
    take_ticket(row, ticket_of('s', one[ADOPTED.created_us], 0, next_number(), one[ADOPTED.blob]))
    rows[id] = row
    tickets:set(id, row.ticket)
    touch(row)
    note_number(id, row.number)
    row[ROW.due_us], row[ROW.joined], row[ROW.attempt] = one[ADOPTED.due_us], one[ADOPTED.joined], one[ADOPTED.attempt]
    row[ROW.lost], row[ROW.unsure], row[ROW.input] = one[ADOPTED.lost], one[ADOPTED.unsure], one[ADOPTED.input]
    row[ROW.error], row[ROW.progress], row[ROW.reason] = one[ADOPTED.error], one[ADOPTED.progress], one[ADOPTED.reason]
    row[ROW.strayed_us], row[ROW.history] = one[ADOPTED.strayed_us], one[ADOPTED.history]
    row[ROW.expires_us] = one[ADOPTED.expires_us]
    if one[ADOPTED.state] == STATE.FAILED then
        row[ROW.state], row[ROW.ended_us], row[ROW.keep_until_us] = STATE.FAILED, one[ADOPTED.ended_us], one[ADOPTED.keep_until_us]
        ended:add(row.number8 .. id, row[ROW.keep_until_us])
        count_jobs(row.profile[PROFILE.queue], STATE.FAILED, 1)
        return 1
    end
    count_jobs(row.profile[PROFILE.queue], STATE.BLOCKED, 1)
    if row[ROW.expires_us] > 0 then
        expiry:add(row.number8 .. id, row[ROW.expires_us])
    end
    local unique, line = row.extra[EXTRA.unique], row.extra[EXTRA.line]
    if unique ~= '' and not directory:get(unique) then
        hold_unique(row)
    end
    if one[ADOPTED.keeps_line] and line_of(line)[LINE.holder] == '' then
        line_of(line)[LINE.holder] = id
        arrange(line)
    end
    wait_for_parents(row)
    if row[ROW.state] == STATE.READY and one[ADOPTED.place] > 0 then
        leave_lane(row)
        row[ROW.place] = one[ADOPTED.place]
        ready:add(in_lane(row))
    end
    return 1
end

for i = 1, #asked_for do
    adopted[i] = adopt_one(asked_for[i])
end
wake_all()
return finish(adopted)
