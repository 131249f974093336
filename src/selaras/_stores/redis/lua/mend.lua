-- mend: dead-letters jobs that nobody can read
-- uses: log, rows, cells, jobs
-- arguments: ids
-- keys: none
-- cost: O(log N) a job, and O(M) for M dependents        -- promise: atomic; twice is once
-- flags: allow-oom

for _, id in ipairs(REQ) do
    local ticket = tickets:get(id)
    if ticket then
        rows[id] = dead_letter(id, ticket, dyns:get(id), true)
    end
end
wake_all()
return finish()
