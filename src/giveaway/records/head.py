"""Head: a model's last linear layer with the features and outputs of its training records, or the outputs alone."""

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_names, check_penalty, check_shape, fail, rows_at_a_time
from giveaway.records.examples import check_class_names, check_inputs, check_targets, saveable
from giveaway.records.rows import LazyRows, LinearRows, Rows, as_float_rows, placed
from giveaway.records.witnesses import WITNESSES, arrays_of_witnesses, check_logarithms, witnesses_in
from giveaway.storage.arrays import read_arrays, write_archive
from giveaway.storage.files import write_atomically

AGREEMENT = 1e-2  # of the outputs' spread; features stored in half precision still pass


@dataclass(frozen=True, eq=False)
class Window:
    """Some records of a head in memory, on one device: their row numbers, features, outputs, targets and weights in the
    training loss, ones where none were given."""

    numbers: torch.Tensor
    features: torch.Tensor
    outputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    intercept: bool

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """Columns of the design matrix: the features, and the bias column if the head has one."""
        return self.features.shape[1] + int(self.intercept)

    def part(self, which: slice) -> "Window":
        """Return some of these rows; nothing is copied."""
        features, outputs, weights = self.features[which], self.outputs[which], self.weights[which]
        return Window(self.numbers[which], features, outputs, self.targets[which], weights, self.intercept)

    def rows(self, dtype: torch.dtype = torch.float64, columns: int | None = None) -> torch.Tensor:
        """Return rows of the design matrix, the bias column last, or zeros after it up to `columns`."""
        d = self.features.shape[1]
        out = torch.empty(len(self), columns or self.width, dtype=dtype, device=self.features.device)
        out[:, :d] = self.features
        out[:, d : self.width] = 1.0
        out[:, self.width :] = 0.0
        return out

    def columns(self) -> torch.Tensor:
        """Return the same rows in float64 as the columns of a contiguous (width, records) matrix."""
        block = self.features
        out = torch.empty(self.width, len(block), dtype=torch.float64, device=block.device)
        # converting while transposing would be slower
        out[: block.shape[1]] = block.T if block.dtype == torch.float64 else block.T.contiguous()
        out[block.shape[1] :] = 1.0
        return out

    def row_norms(self) -> torch.Tensor:
        """Return ‖x‖ of the rows of the design matrix."""
        norms = torch.linalg.vector_norm(self.features.to(torch.float64), dim=1)
        return torch.hypot(norms, torch.ones_like(norms)) if self.intercept else norms


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """A linear head and the records it was trained on, or a black box: what any other model says of its records.

    features : (n, d) inputs of the head, without the bias column; NumPy, torch or memory-mapped. A memory map of 64 MB
        and more is never held in memory as a whole: it becomes LazyRows, whose slices are read. None for a black box
        (boosted trees, any model without a linear head), which has no l2, weight and bias either.
    outputs : (n, m) raw logits or predictions. Of a model that gives probabilities p, their logarithms, which are
        logits but for a constant a record: np.log(np.clip(p, 1e-12, None)).
    targets : class indices (n,), soft labels (n, m), 0/1 labels, or values (n,) or (n, m).
    loss : "squared", "cross_entropy" (also one logit with 0/1 targets) or "binary_cross_entropy" (multi-label).
    l2 : penalty in summed-loss units; see docs/notation.md for what your trainer's setting amounts to.
    intercept, penalize_intercept : whether the head has a bias, and whether l2 acts on it.
    weight, bias : (m, d) and (m,); needed by an audit with optimum="corrected", and checked against outputs.
    sample_weight : (n,) non-negative weights of the records in the training loss.
    ids : a unique name a record (row numbers by default). groups : the person each record belongs to.
    inputs : the records themselves, row by row: images (n, c, h, w) or (n, h, w), a table (n, p) of numbers, strings or
        objects, a pandas DataFrame, or n strings, which become a list.
    frozen : whether nothing before the head was trained on these records, as of a linear probe on a frozen encoder.
        `newton` is exact then, and `fused` ranks as it does. Nothing in the arrays tells: say it only if it is so.
    rows_proved_by : how it is known that row i is record i, where `from_torch` proved it.
    relatives : the model's outputs (n, m) on a variant of every record, such as its mirror image: a dict from the
        variant's name to them, or one array.
    held_out : (outputs (k, m), targets) of records that the model was not trained on.
    out_of_bag : (n, m) what the part of a bagged model that never saw the record says of it, in the units of outputs;
        with groups, the part that never saw the person. Rows of NaN where no such part is left.
    model : what kind of model it is, such as RandomForestClassifier.
    class_names : what the classes are called, in the order of their numbers; tables and pages then say so.

    >>> probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> Head(None, np.log(probabilities), [0, 1, 1], "cross_entropy", inputs=["a", "b", "c"])
    Head(n=3, black box, m=2, loss='cross_entropy', inputs=text)
    """

    features: torch.Tensor | LazyRows
    outputs: torch.Tensor | LazyRows
    targets: torch.Tensor
    loss: str
    l2: float = 0.0
    intercept: bool = True
    penalize_intercept: bool = True
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    sample_weight: torch.Tensor | None = None
    ids: np.ndarray = None  # type: ignore[assignment]
    groups: np.ndarray | None = None
    inputs: Any = None
    frozen: bool = False
    rows_proved_by: str | None = None
    relatives: dict[str, Rows] | None = None
    held_out: tuple[Rows, torch.Tensor] | None = None
    out_of_bag: torch.Tensor | None = None
    model: str | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        outputs = as_float_rows("outputs", self.outputs)
        if self.features is None:
            check_shape("outputs", outputs, (None, None), "(records, outputs)")
            features: Rows = torch.empty(len(outputs), 0, dtype=torch.float64, device=outputs.device)
            set_field("intercept", False)
        else:
            features = as_float_rows("features", self.features)
        check_shape("features", features, (None, None), "(records, features)")
        n, d = features.shape
        if n < 2:
            argument = "outputs" if self.features is None else "features"
            raise fail(argument, "at least 2 records", f"{n}", "pass the training set, one row a record")
        # dataclasses.replace hands a black box its own empty features again
        black_box = d == 0 and not self.intercept
        if black_box and self.features is not None and not (self.weight is None and self.bias is None):
            raise fail("features", "at least one feature", "0 features", "pass the inputs of the head")
        check_shape("outputs", outputs, (n, None), f"({n}, outputs), one row a record as in features")
        if black_box or (self.weight is None and isinstance(outputs, torch.Tensor)):
            check_logarithms(outputs, self.loss)
        set_field("features", features)
        set_field("outputs", outputs)
        if self.weight is None or not self.lazy:  # else in one read of both, together with the weights
            check_finite("features", features)
            check_finite("outputs", outputs)
        set_field("targets", check_targets(as_tensor("targets", self.targets), outputs, self.loss))
        set_field("l2", check_penalty("l2", self.l2))
        if black_box:
            for name in ("l2", "weight", "bias"):
                if (value := getattr(self, name)) is not None and (name != "l2" or value > 0):
                    got = f"{value:g}" if name == "l2" else f"a {name}"
                    remedy = f"drop {name}=, or pass the features of a linear head"
                    raise fail(name, f"no {name} for a black box (features=None)", got, remedy)
        if not isinstance(self.frozen, bool) or (self.frozen and black_box):
            got = "True for a black box (features=None)" if self.frozen is True else repr(self.frozen)
            remedy = "say frozen=True only of the features of a linear head that was trained alone"
            raise fail("frozen", "True or False", got, remedy)
        if self.sample_weight is not None:
            weights = as_tensor("sample_weight", self.sample_weight).to(torch.float64)
            check_shape("sample_weight", weights, (n,), f"({n},), one weight a record")
            check_finite("sample_weight", weights)
            if bool((weights < 0).any()) or not bool((weights > 0).any()):
                raise fail("sample_weight", "non-negative weights, not all zero", "others", "pass the training weights")
            set_field("sample_weight", weights)
        self._check_parameters()
        set_field("ids", np.arange(n) if self.ids is None else check_names("ids", self.ids, n, unique=True))
        if self.groups is not None:
            set_field("groups", check_names("groups", self.groups, n, unique=False))
        if self.inputs is not None:
            set_field("inputs", check_inputs(self.inputs, n))
        for name, check in WITNESSES.items():
            if (value := getattr(self, name)) is not None:
                set_field(name, check(value, n, self.m, self.loss))
        if self.class_names is not None:
            set_field("class_names", check_class_names(self.class_names, self.m, self.loss))

    @property
    def n(self) -> int:
        """Records."""
        return self.features.shape[0]

    @property
    def m(self) -> int:
        """Outputs of the head."""
        return self.outputs.shape[1]

    @property
    def width(self) -> int:
        """Columns of the design matrix: the features, and the bias column if the head has one."""
        return self.features.shape[1] + int(self.intercept)

    @property
    def penalized(self) -> int:
        """Columns of the design matrix that l2 acts on, which are the first."""
        return self.width - int(self.intercept and not self.penalize_intercept)

    @property
    def device(self) -> torch.device:
        """The device that computes with the records."""
        return self.features.device

    @property
    def linear(self) -> bool:
        """Whether there is a linear head; False for a black box."""
        return self.width > 0

    @property
    def lazy(self) -> bool:
        """Whether features or outputs are read, or computed, only when a slice of them is needed."""
        return isinstance(self.features, LazyRows) or isinstance(self.outputs, LazyRows)

    def slices(self, size: int) -> Iterator[slice]:
        """Yield consecutive slices of at most `size` records."""
        for start in range(0, self.n, size):
            yield slice(start, min(start + size, self.n))

    def window(self, which: slice | torch.Tensor) -> Window:
        """Read these records into memory: consecutive ones by a slice, any others by their row numbers."""
        if isinstance(which, slice):
            numbers = torch.arange(*which.indices(self.n), device=self.device)
        else:
            numbers = which.to(self.device)
        given, features = self.sample_weight, self.features[which]
        weights = torch.ones_like(numbers, dtype=torch.float64) if given is None else given[which]
        if isinstance(self.outputs, LinearRows) and self.outputs.reads(self.features):
            outputs = self.outputs.of(features, which)  # from features that are read once
        else:
            outputs = self.outputs[which]
        return Window(numbers, features, outputs, self.targets[which], weights, self.intercept)

    def to(self, device: torch.device | str) -> "Head":
        """Return the same head for use on `device`, unchecked: features and outputs held there as far as they fit in
        half of a GPU's free memory, else read window by window. All else that views ask stays where it is."""
        where = torch.empty(0, device=device).device
        room = torch.cuda.mem_get_info(where)[0] / 2 if where.type == "cuda" else 0.0
        features, outputs = placed(self.features, where, room), self.outputs
        if isinstance(outputs, LinearRows) and outputs.reads(self.features):
            outputs = outputs.over(features)
        room -= features.nbytes if isinstance(features, torch.Tensor) else 0
        moved: dict[str, Any] = {"features": features, "outputs": placed(outputs, where, room)}
        for name in ("targets", "weight", "bias", "sample_weight"):
            value = getattr(self, name)
            moved[name] = None if value is None else value.to(where)
        return self._with(**moved)

    def named(self, *, ids: Any = None, groups: Any = None) -> "Head":
        """Return the same records under other ids or groups; nothing else is checked again."""
        given = {name: value for name, value in (("ids", ids), ("groups", groups)) if value is not None}
        return self._with(**{name: check_names(name, v, self.n, unique=name == "ids") for name, v in given.items()})

    def parameters(self) -> torch.Tensor:
        """Return θ as (width, m) in float64; raise where the head was built without its weights."""
        if not self.linear:
            raise fail("head", "a linear head", "a black box", "pass the features of a linear head to Head")
        if self.weight is None:
            raise fail("weight", "the head's weights (m, d) and bias (m)", "none", "pass weight= and bias= to Head")
        theta = self.weight.to(torch.float64).T
        if not self.intercept:
            return theta
        assert self.bias is not None
        return torch.cat([theta, self.bias.to(torch.float64).unsqueeze(0)])

    def with_parameters(self, theta: torch.Tensor) -> "Head":
        """Return the same records with the outputs of other parameters θ (width, m), lazily if these are lazy."""
        d = self.features.shape[1]
        weight, bias = theta[:d].T.contiguous(), theta[d] if self.intercept else None
        if self.lazy:
            check_finite("theta", theta)
            return self._with(outputs=LinearRows(self.features, weight, bias), weight=weight, bias=bias)
        outputs = torch.cat([self.window(part).rows() @ theta for part in self.slices(rows_at_a_time(self.features))])
        return replace(self, outputs=outputs, weight=weight, bias=bias)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz that `Head.load` and `giveaway audit --features` read; no pickle."""
        names = ("outputs", "targets", "weight", "bias", "sample_weight", "ids", "groups")
        arrays = {name: getattr(self, name) for name in (("features", *names) if self.linear else names)}
        arrays["inputs"] = None if self.inputs is None else saveable(self.inputs)
        arrays |= arrays_of_witnesses(self)
        told = ("loss", "l2", "intercept", "penalize_intercept", "frozen", "rows_proved_by", "model", "class_names")
        arrays["options"] = np.array(json.dumps({name: getattr(self, name) for name in told}))
        saved = {name: value for name, value in arrays.items() if value is not None}
        write_atomically(path, lambda stream: write_archive(stream, saved))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Head":
        """Read what `save` wrote."""
        stored: dict[str, Any] = read_arrays("path", path, "Head.save")
        if "options" not in stored:
            remedy = "read other files with giveaway.extract.from_file"
            raise fail("path", "a file written by Head.save", "another .npz", remedy)
        options = json.loads(str(stored.pop("options")))
        known = {field.name for field in fields(cls)}
        stored |= witnesses_in(stored)
        stored.setdefault("features", None)
        return cls(**{name: value for name, value in stored.items() if name in known}, **options)

    def __repr__(self) -> str:
        parts = [f"n={self.n}", f"d={self.features.shape[1]}" if self.linear else "black box", f"m={self.m}"]
        parts += [f"loss={self.loss!r}", *([f"l2={self.l2:g}"] if self.linear else [])]
        parts += ["frozen"] if self.frozen else []
        parts += [f"people={len(np.unique(self.groups))}"] if self.groups is not None else []
        if self.inputs is not None:
            parts.append(f"inputs={'text' if isinstance(self.inputs, list) else tuple(self.inputs.shape[1:])}")
        parts += [f"relatives={'+'.join(self.relatives)}"] if self.relatives is not None else []
        parts += [f"held_out={len(self.held_out[0])}"] if self.held_out is not None else []
        return f"Head({', '.join([*parts, *(['out_of_bag'] if self.out_of_bag is not None else [])])})"

    def _with(self, **changed: Any) -> "Head":
        """Return a copy with other fields, which are known to be valid: nothing is read to check them."""
        other = copy.copy(self)
        for name, value in changed.items():
            object.__setattr__(other, name, value)
        return other

    def _check_parameters(self) -> None:
        if self.weight is None:
            if self.bias is not None:
                raise fail("bias", "weight together with bias", "bias alone", "pass weight= as well")
            return
        m, d = self.m, self.features.shape[1]
        weight = as_tensor("weight", self.weight)
        weight = weight.unsqueeze(0) if weight.ndim == 1 else weight
        check_shape("weight", weight, (m, d), f"({m}, {d}), outputs by features")
        check_finite("weight", weight)
        object.__setattr__(self, "weight", weight)
        if self.intercept:
            bias = weight.new_zeros(m) if self.bias is None else as_tensor("bias", self.bias).reshape(-1)
            check_shape("bias", bias, (m,), f"({m},), one number an output")
            check_finite("bias", bias)
            object.__setattr__(self, "bias", bias)
        elif self.bias is not None:
            raise fail("bias", "no bias where intercept=False", "a bias", "drop bias= or set intercept=True")
        if isinstance(self.outputs, LinearRows) and self.outputs.comes_from(self.features, weight, self.bias):
            check_finite("features", self.features)
            return
        theta, lazy = self.parameters(), self.lazy
        worst, row, low, high = 0.0, 0, float("inf"), float("-inf")
        for part in self.slices(rows_at_a_time(self.features)):
            window = self.window(part)
            if lazy:
                check_finite("features", window.features, part.start)
                check_finite("outputs", window.outputs, part.start)
            given = window.outputs.to(torch.float64)
            gap = (window.rows() @ theta - given).abs().amax(dim=1)
            low, high = min(low, float(given.min())), max(high, float(given.max()))
            if float(gap.max()) > worst:
                worst, row = float(gap.max()), part.start + int(gap.argmax())
        spread = max(high - low, abs(high), abs(low), 1e-12)
        if worst > AGREEMENT * spread:
            got = f"a difference of {worst:.3g} in row {row} where outputs span {spread:.3g}"
            remedy = "pass the inputs of the head and its raw outputs, before softmax, in the same record order"
            raise fail("outputs", "features @ weight.T + bias", got, remedy)
