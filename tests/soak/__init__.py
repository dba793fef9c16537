"""A fault campaign with real processes: `python -m tests.soak --seed 7`.

Every site is a process of its own (agent and engine), in a network of its own where that is
possible; publishers run beside them, and at every site a live and a durable subscriber to every
topic. Faults are drawn from the seed and done to them while the load goes on, and a judge looks at
what publishers and subscribers write down as they do. At the end everything is healed, and what
publishers were promised is compared with what the logs hold.

    plan.py        which faults, when: a pure function of the seed
    process.py     processes that die with the campaign; sites that are started anew; disks
    site.py, publisher.py, subscriber.py   what those processes run
    tail.py        what they write down, as it grows
    judge.py       which histories break a promise, told while it runs: pure
    campaign.py    the order of things
    check.py       promises against logs, at the end: pure functions

Beside kills, stops, cuts and moves of a few seconds there are harder faults (not with `--no-hard`):
some last up to 150 s, so that every timer of the product runs out; publishers are killed and
started; one publishes at full rate for a while; a disk is full; sites get further away and come
back; and in a campaign of 90 s or more a site is destroyed and replaced by a new one. Full disks
need root; cuts and distances need root and namespaces. Where these are missing the report says so.

The seed fixes the plan, not the interleaving: the same seed twice does the same harm at the same
times, and may find a fault only once.
"""
