"""How many seeds a law is tried with: some in every run of the suite, all of them in `make laws`.

More seeds find what the same law finds, later; either number must have met what is rare.
"""

import os

ALL = os.environ.get("TANDEM_SEEDS") == "all"


def seeds(usual: int, all_of_them: int) -> int:
    return all_of_them if ALL else usual
