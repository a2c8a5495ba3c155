"""A seeded storm over real supervisors and a real server, with a ledger that is checked when it is over.

``python -m tests.chaos --minutes 30`` runs one. ``plan`` says what is to happen, and ``terms`` to what kind of fleet;
``place`` is the server, ``fleet`` the supervisors, ``forces`` does the harm, ``record`` writes down what happened,
``ledger``, ``repeats`` and ``keeping`` judge it, ``leftovers`` looks for what remained, and ``storm`` runs it all.
"""
