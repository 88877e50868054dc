"""Metadata of a score table: what was audited, with which options, and what the audit found besides the scores.

`to_json` writes the keys of audit.json and `from_json` reads them back. Keys that no field is named after stay in
`more`, so that a file written by another version loses nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from giveaway.checks import fail

SHARE_WORDS = ("few", "some", "many")  # for how many records are predicted to be exposed
LARGEST = 1e300  # of a number in the metadata: pages multiply them
annotations: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def check_fields(place: str, given: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Refuse an entry of `given` that is not what its annotation in `kinds` says; a.b is an entry of the entry a, which
    must be there."""
    for name, kind in kinds.items():
        value: Any = given
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not fits(value, kind) and (value is not None or "." in name):
            got = f"a {type(value).__name__}"
            raise fail("meta", f"another kind of {name} in {place}", got, "write the audit again")


def fits(value: Any, kind: Any) -> bool:
    inner = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(fits(value, each) for each in inner)
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping) and all(isinstance(n, str) and fits(v, inner[1]) for n, v in value.items())
    if get_origin(kind) in (Sequence, list):
        return isinstance(value, list | tuple) and all(fits(each, inner[0]) for each in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and abs(value) < LARGEST
    return kind is Any or isinstance(value, kind)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the metadata. What pages, gates and comparisons read is a field, whose kind is checked; all else that
    was told stays in `more`, and is an attribute as well. A field that has a default and is None is not written."""

    more: Mapping[str, Any] = field(default_factory=dict)
    KEYS: ClassVar[Mapping[str, str]] = {}  # JSON keys of fields that are named otherwise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "more" or name not in self.more:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return self.more[name]

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        if not isinstance(given, Mapping):
            raise fail("meta", f"a mapping for {cls.__name__}", type(given).__name__, "write the audit again")
        names = {cls.KEYS.get(one.name, one.name): one for one in fields(cls) if one.name != "more"}
        missing = {one.name: None for one in names.values() if one.default is one.default_factory is MISSING}
        known = {one.name: given[key] for key, one in names.items() if key in given}
        check_fields(cls.__name__, known, {name: kind for name, kind in annotations(cls).items() if name in known})
        return cls(**missing | known, more={key: value for key, value in given.items() if key not in names})

    def to_json(self) -> dict[str, Any]:
        """Write the section as a dictionary of plain values."""
        written = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "more" and (value is not None or one.default is MISSING):
                written[self.KEYS.get(one.name, one.name)] = value.to_json() if isinstance(value, Section) else value
        return written | dict(self.more)


@dataclass(frozen=True, kw_only=True)
class CurvatureReport(Section):
    """How the curvature of the head was inverted."""

    kind: str
    inverse: str | None = None
    rounded: int | None = None
    probes: int | None = None
    threads: int | None = None
    relative_errors: Mapping[str, float | None] | None = None
    high_leverage: int | None = None
    solved_exactly: int | None = None

    KEYS: ClassVar[Mapping[str, str]] = {"kind": "curvature"}


@dataclass(frozen=True, kw_only=True)
class Optimum(Section):
    """How far the head is from the optimum of its objective; the gradient is None where its weights are unknown."""

    relative_gradient: float | None
    note: str


@dataclass(frozen=True, kw_only=True)
class ViewReport(Section):
    """How the other records predicted a left-out one, and how that was fused with the model's own view."""

    kind: str
    kernel: str | None = None
    method: str | None = None
    left_out_error: float
    memorized: float
    head_is_exact: bool

    KEYS: ClassVar[Mapping[str, str]] = {"kind": "view"}


@dataclass(frozen=True, kw_only=True)
class FusionReport(Section):
    """Which views `fused` asked, by column, and what each counts; and what that rests on."""

    weights: Mapping[str, float]
    held_out_error: float | None = None
    trace_share_of_its_own: float | None = None
    relatives: Mapping[str, Mapping[str, float]] | None = None
    without_out_of_bag: int | None = None


@dataclass(frozen=True, kw_only=True)
class TraceReport(Section):
    """The trace of the training: its epochs, or its steps of another kind, how it was proved to be of these records,
    the band of all records at every epoch (quantiles .1, .5, .9; None where none came up), and the losses of the most
    exposed rows."""

    steps: str = "epochs"
    epochs: int
    proof: str
    never_seen: int
    band: Sequence[Sequence[float | None]]
    rows: Sequence[int]
    losses: Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class PredictedShare(Section):
    """How many records are predicted to be exposed, in words: one, or two next to each other. Not measured."""

    words: Sequence[str]
    held_out: int

    def __post_init__(self) -> None:
        if not self.words or not set(self.words) <= set(SHARE_WORDS):
            raise fail("meta", f"some of {', '.join(SHARE_WORDS)}", "other words", "write the audit again")


@dataclass(frozen=True, kw_only=True)
class KernelReport(Section):
    """The Gaussian process of the lood scores."""

    name: str
    noise: float
    condition: float

    KEYS: ClassVar[Mapping[str, str]] = {"name": "kernel"}


@dataclass(frozen=True, kw_only=True)
class Repeats(Section):
    """How many records are in the data more than once."""

    exact: int
    near: int


@dataclass(frozen=True, kw_only=True)
class Continuation(Section):
    """How many texts a model gives back, `tokens` of them after the first `prefix`, and how many of those it gave back
    `before` it was fine-tuned; `texts` are long enough."""

    prefix: int
    tokens: int
    texts: int
    continued: int
    before: int | None = None


@dataclass(frozen=True, kw_only=True)
class DepthReport(Section):
    """How the scores through more of the network than its head were made."""

    curvature: str
    damping: float
    method: str | None = None
    probes: int | None = None
    sketch_error: Mapping[str, float] | None = None
    solve_error: float | None = None
    unsolved: int | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance(Section):
    """What an audit came from. `audit` names it where the digest of its inputs, which can confirm a guess, must not."""

    audit: str | None = None
    date: str | None = None
    inputs_sha256: str | None = None
    weights_sha256: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Meta(Section):
    """Metadata of a table. `of_model` tells an audit of a model from a table of Gaussian-process scores alone."""

    unit: str = "record"
    rows: int | None = None
    records: int | None = None
    outputs: int | None = None
    loss: str | None = None
    l2: float | None = None
    intercept: bool | None = None
    penalize_intercept: bool | None = None
    frozen: bool | None = None
    rows_proved_by: str | None = None
    options: Section | None = None
    processes: int | None = None
    device: str | None = None
    curvature: CurvatureReport | None = None
    optimum: Optimum | None = None
    view: ViewReport | None = None
    no_view: str | None = None
    fusion: FusionReport | None = None
    trace: TraceReport | None = None
    predicted_by: str | None = None
    no_prediction: str | None = None
    predicted_share: PredictedShare | None = None
    kernel: KernelReport | None = None
    repeats: Repeats | None = None
    continuation: Continuation | None = None
    newton_capped: int | None = None
    seconds: float | None = None
    depths: Mapping[str, DepthReport] | None = None
    access: str | None = None
    title: str | None = None
    provenance: Provenance | None = None
    model: str | None = None
    class_names: Sequence[str] | None = None
    of_model: bool = False

    # not of every audit
    LATER: ClassVar[tuple[str, ...]] = ("model", "rows_proved_by", "fusion", "trace", "depths", "predicted_share")
    LATER += ("continuation", "access", "title", "provenance", "class_names")

    @property
    def by_person(self) -> bool:
        return self.unit == "person"

    @property
    def rows_are(self) -> str:
        return "people" if self.by_person else f"{self.record}s"

    @property
    def record(self) -> str:
        """What a page calls a record."""
        return "text" if self.loss == "tokens" else "record"

    @property
    def row_is(self) -> str:
        return "person" if self.by_person else self.record

    @property
    def nouns(self) -> dict[str, str]:
        """What pages call the rows, one of them, and a record."""
        return {"unit": self.rows_are, "one": self.row_is, "record": self.record}

    @property
    def assumes_optimum(self) -> bool:
        """Whether the scores take the head to be at the optimum of its objective."""
        return self.options is None or self.options.more.get("converged") is not False

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        read: dict[str, Any] = {**given, "of_model": "optimum" in given}
        if isinstance(given.get("kernel"), str):  # a table of Gaussian-process scores has these on the top level
            read["kernel"] = {name: read.pop(name, None) for name in ("kernel", "noise", "condition")}
        for name, hint in annotations(cls).items():
            kind = next(iter(get_args(hint)), None)
            if isinstance(kind, type) and issubclass(kind, Section) and read.get(name) is not None:
                read[name] = kind.from_json(read[name])
        if isinstance(read.get("depths"), Mapping):
            read["depths"] = {depth: DepthReport.from_json(report) for depth, report in read["depths"].items()}
        return super().from_json(read)

    def to_json(self) -> dict[str, Any]:
        written = super().to_json()
        del written["of_model"]
        if self.of_model:
            skipped = {"more", "of_model", *self.LATER} - ({"title"} if self.provenance is not None else set())
            written = {one.name: None for one in fields(self) if one.name not in skipped} | written
        elif self.kernel is not None:
            written |= self.kernel.to_json()
        if self.depths is not None:
            written["depths"] = {depth: report.to_json() for depth, report in self.depths.items()}
        return written
