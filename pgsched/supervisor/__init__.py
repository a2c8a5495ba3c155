"""The parent: one asyncio loop whose duties claim, dispatch, settle, renew, reap and watch.

Each duty is a small class in its own file with a ``turn`` that a test can call by hand. Nothing here runs
user code or blocks; every database call has a deadline.
"""
