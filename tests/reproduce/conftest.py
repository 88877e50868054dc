from __future__ import annotations

import pytest
from benchmarks.reproduce.job import RESULTS
from benchmarks.reproduce.page import read_results


@pytest.fixture(scope="session")
def committed():
    """The committed results by setting; tests that change them take a deep copy."""
    return read_results(RESULTS)
