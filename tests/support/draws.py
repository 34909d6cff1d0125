"""How many random examples a property test draws where it needs more, or fewer, than others."""

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """``count`` of them; a quarter under the profile ``few``, which leaves others a quarter, too."""
    few = os.environ.get("HYPOTHESIS_PROFILE") == "few"
    return settings(max_examples=-(-count // 4) if few else count, deadline=None)
