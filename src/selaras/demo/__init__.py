"""Every flight that left New York in January 2013, one job each: a load with a known right answer.

Read in this order: `airline` (the jobs and their cached values: the example), `ledger` (the datastore they write,
and how a write is made safe to repeat), `naive` (the same with a cache made by hand), `answer` (the right answer, by one
plain pass). The rest runs and shows it: `command`, `crew`, `gauges`, `show`.
"""
