"""The views of a record, and the rule by which `fused` puts them together as normal scores: what each view counts
follows from how far the records themselves say that it can be trusted (docs/views.md, "How they are fused")."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

LEAST = 1e-300
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Views:
    """What is known of every row (a record, or a person, whose records are summed); None for a view that is not there.

    head, error_with : the head's score (newton, or the loss of a black box) and the model's squared error.
    error_without, leverage : the squared error of the other records' left-out prediction, and the row's leverage on it.
    variation : Σ‖y − ȳ‖² of the targets.
    head_is_exact : whether the head's features were not learned, so that no view has anything to add to it.
    loss : of the finished model. records : how many records the rows hold in all.
    held_out_error : the model's mean squared error on records that it was not trained on.
    roots, iqr : the mean over a trace's epochs of √loss, and the interquartile range of the losses (LT-IQR).
    variants, variants_weight : the mean over variants of the normal scores of the loss on them, and what that counts.
    bag : the loss of what those parts of a bagged model say that never saw the row.
    """

    head: np.ndarray
    error_with: np.ndarray
    error_without: np.ndarray | None
    leverage: np.ndarray | None
    variation: float
    head_is_exact: bool
    loss: np.ndarray | None = None
    records: int = 0
    held_out_error: float | None = None
    roots: np.ndarray | None = None
    iqr: np.ndarray | None = None
    variants: np.ndarray | None = None
    variants_weight: float = 0.0
    bag: np.ndarray | None = None

    @cached_property
    def memorized(self) -> float:
        """M by the other records' errors, from 0 to 1."""
        return removed(math.fsum(self.error_with), self._unseen_by_others)

    @cached_property
    def held(self) -> float:
        """G, the share of the targets' variation that the model holds by memory, from 0 to 1."""
        unseen = self._unseen_by_others if self.held_out_error is None else self.held_out_error * self.records
        return share_of(unseen - math.fsum(self.error_with), self.variation) if self.variation > 0 else 0.0

    @cached_property
    def unpredicted(self) -> float:
        """U, the share of the targets' variation that the model predicts of unseen records and the kernel does not."""
        if self.held_out_error is None:
            return 0.0
        return share_of(self._unseen_by_others - self.held_out_error * self.records, self.variation)

    @property
    def head_weight(self) -> float:
        """What the head counts beside 1 for the other records, where no records were held out."""
        m = self.memorized
        return (1.0 - self.held) * (m * m + (1.0 - m) ** 2)

    @cached_property
    def weights(self) -> dict[str, float]:
        """What each view that is there counts in `fused`, by its column; `head` for the head's own."""
        if self.head_is_exact:
            return {"head": 1.0}
        others, head = 1.0, 1.0
        if self.held_out_error is not None:
            m = removed(math.fsum(self.error_with), self.held_out_error * self.records)
            others = m * (1.0 - self.unpredicted)
            head = (1.0 - self.held) ** 2 * (m * m + (1.0 - m) ** 2)
        elif self.error_without is not None:
            head = self.head_weight
        counts = {} if self.error_without is None else {"left_out": others}
        counts |= {"head": head} if self.bag is None else {"out_of_bag": 1.0}
        if self.variants is not None:
            counts["relatives"] = self.variants_weight
        if self.roots is None:
            return counts
        finished, own = sum(counts[name] * self.scores[name] for name in counts), self.share_of_its_own
        spread = float(np.std(finished))
        if spread <= ROUNDING * sum(counts.values()):  # views that contradict each other everywhere say nothing
            spread = 1.0
        return {name: (1.0 - own) ** 2 * count / spread for name, count in counts.items()} | {"trace": own**2}

    @cached_property
    def share_of_its_own(self) -> float:
        """s, the share of the trace that the finished model's loss does not repeat, from 0 to 1."""
        assert self.roots is not None
        assert self.loss is not None
        return share_of_its_own(self.roots, self.loss)

    @cached_property
    def scores(self) -> dict[str, np.ndarray]:
        """Normal scores of the views that are there, by column."""
        known = {"head": self.head, "relatives": self.variants, "out_of_bag": self.bag, "trace": self.roots}
        if self.error_without is not None:
            known["left_out"] = left_out(self)
            if self.roots is not None:
                known["trace"] = self._taken_away(self.roots**2, (1.0 - self.unpredicted) ** 2)
        return {name: normal_scores(values) for name, values in known.items() if values is not None}

    @property
    def _unseen_by_others(self) -> float:
        return 0.0 if self.error_without is None else math.fsum(self.error_without)  # in any order of rows

    def _taken_away(self, error: np.ndarray, trusted: float = 1.0) -> np.ndarray:
        """What a record takes away of its squared error: all in a model that memorizes, else the share h of it, as far
        as the kernel is `trusted`."""
        assert self.leverage is not None
        return error * np.maximum(self.leverage, LEAST) ** ((1.0 - self.memorized) * trusted)


def left_out(views: Views) -> np.ndarray:
    """‖error without it‖² · leverage^(1 − M): the squared error that the record itself takes away."""
    assert views.error_without is not None
    return views._taken_away(views.error_without)


def fused(views: Views) -> np.ndarray:
    """The sum of the views' normal scores, each times what it counts. A trace is taken as left_out is: its squared
    mean root times leverage^((1 − M)(1 − U)²), where the other records tell a leverage."""
    return np.sum([count * views.scores[name] for name, count in views.weights.items()], axis=0)


def share_of_its_own(roots: np.ndarray, loss: np.ndarray) -> float:
    """√(1 − r²) of the correlation r between the normal scores of a trace and of the finished model's loss."""
    trace, loss = normal_scores(roots), normal_scores(loss)
    together = math.sqrt(float(trace @ trace) * float(loss @ loss))
    repeated = max(0.0, float(trace @ loss) / together) if together > 0 else 0.0
    return math.sqrt(max(0.0, 1.0 - repeated**2))


def share_of(part: float, whole: float) -> float:
    """part/whole within 0 and 1, without overflow however small the whole is."""
    return 0.0 if part <= 0 else 1.0 if part >= whole else float(part / whole)


def removed(with_it: float, without_it: float) -> float:
    """1 − with_it/without_it within 0 and 1; 0 where there was nothing to remove."""
    return 1.0 - share_of(with_it, without_it) if without_it > 0 else 0.0


def normal_scores(values: np.ndarray) -> np.ndarray:
    """Φ⁻¹((rank − ½)/n), equal values sharing their mean rank."""
    return ndtri((rankdata(values) - 0.5) / len(values))
