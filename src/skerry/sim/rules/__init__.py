"""The rules of who may be a home (`skerry.model.promotion`), with a model of all else: thousands of
schedules in the time of some of `skerry.sim.trial`.

It stays until that one notices each rule that is left out.
"""
