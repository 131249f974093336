"""Fleets of the product's own processes under a virtual clock and a seed, in a search for broken promises.

    python -m simulation --hours 8       many seeds, one after the other; a failure is replayed and made short
    python -m simulation --seed 4711     one of them again, step for step the same

One *world* is one seed. Its *plan* is drawn from the seed: which store, how many partitions, processes and keys, which
faults and how often. Everything in it runs on one loop (`loop`), whose order and time come from the seed, too: workers,
producers and readers (`actors`) are simulated processes that share nothing but a store, reached over a network that
loses, delays and repeats (`network`), and a datastore (`truth`) that knows what was true when. Whatever is read, claimed
or settled is held against the promises of docs/guarantees.md as it happens (`promises`).
"""
