"""How properties are tested: few examples at each run of a floor that must stay quick, and no clock on any of them."""

from hypothesis import settings

# A busy machine is no failure, and examples that failed before are told to whoever reads the output, not to a file.
settings.register_profile("pgsched", max_examples=50, deadline=None, database=None, print_blob=True)
settings.load_profile("pgsched")
