import pytest

from giveaway.checks import InputError
from giveaway.extract.user_files import first_line, reading


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            PermissionError(13, "denied"),
            "model: expected a file that can be read, got .*model.bin; check its permissions",
        ),
        (ValueError("line one\nline two"), "model: expected a whole bin file, got model.bin, truncated or not of that"),
        (AssertionError(), "model: expected a whole bin file, got model.bin, truncated or not of that format; write"),
        (AttributeError("no Net in it\n?"), r"code can be imported, got model.bin, which needs more \(no Net in it\);"),
        (InputError("its own words"), "^its own words$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_to_read_are_told_in_one_line(file, failure, words):
    with pytest.raises(InputError, match=words) as caught, reading("model", file, "bin file"):
        raise failure
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_what_is_no_fault_of_the_file_is_not_blamed_on_it(file, failure):
    with pytest.raises(failure), reading("model", file, "bin file"):
        raise failure


def test_a_file_that_reads_well_is_handed_over(file):
    with reading("model", str(file), "bin file") as given:
        assert given == file


def test_first_line():
    assert first_line(ValueError("a\nb")) == "a"
    assert first_line(ValueError()) == "ValueError"
