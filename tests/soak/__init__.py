"""A fault campaign with real processes: `python -m tests.soak --seed 7`.

Every site is a process of its own (agent and engine), in a network of its own where that is
possible; publishers and durable subscribers run beside them. Faults are drawn from the seed and
done to them while the load goes on. At the end everything is healed, and what publishers were
promised is compared with what the logs hold.

    plan.py        which faults, when: a pure function of the seed
    process.py     processes that die with the campaign; sites that are started anew
    site.py, publisher.py, subscriber.py   what those processes run
    campaign.py    the order of things
    check.py       promises against logs: pure functions

The seed fixes the plan, not the interleaving: the same seed twice does the same harm at the same
times, and may find a fault only once.
"""
