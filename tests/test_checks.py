"""Free memory as the system states it, and the refusal of work that needs more."""

import os
from pathlib import Path

import pytest

from giveaway import checks
from giveaway.checks import InputError, available_memory, check_memory


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="no /proc/meminfo here")
def test_what_is_available_lies_between_free_and_total():
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemFree"))
    assert free / 2 < available_memory() <= total
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory() <= 1.01 * physical


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("MemTotal:       100 kB\nMemFree:        10 kB\nMemAvailable:    73 kB\nBuffers:   1 kB\n", 73 * 1024),
        ("MemTotal:       100 kB\nMemFree:        10 kB\n", None),  # old kernels do not tell: all there is
        (None, None),
    ],
)
def test_the_system_s_own_words_are_read(monkeypatch, tmp_path, text, bytes_):
    file = tmp_path / "meminfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(checks, "MEMORY", file)
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory() == (everything if bytes_ is None else bytes_)


def test_more_than_there_is_is_refused_and_as_much_is_not(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 2_500_000_000)
    words = {"what": "two matrices", "got": "9 records", "remedy": "take fewer"}
    check_memory("inputs", 2_500_000_000, **words)
    with pytest.raises(InputError) as error:
        check_memory("inputs", 3_640_000_000, **words)
    assert str(error.value) == (
        "inputs: expected two matrices within the 2.5 GB of free memory, got 9 records, which need 3.6 GB; take fewer"
    )
    with pytest.raises(InputError):
        check_memory("inputs", 2_500_000_001, **words)
