"""What ships, without machines: virtual time, simulated engines, a seeded network, faults.

`python -m skerry.sim SEED --trace` replays one trial, `--seeds 0:1000` runs many.
"""
