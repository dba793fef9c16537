"""Protocols without machines: virtual time, a seeded network, faults, and models of the fabric.

`python -m skerry.sim SEED --trace` replays one schedule, `--seeds 0:10000` runs many.
"""
