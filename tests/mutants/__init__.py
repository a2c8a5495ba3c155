"""Takes the guards out of the sources, one at a time, and sees a test turn red for each: ``python -m tests.mutants``.

A guard that no test misses is either missing a test, or is none. The tables name for each guard the fewest tests that
must fail without it.
"""
