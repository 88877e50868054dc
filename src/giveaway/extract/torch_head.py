"""from_torch: the linear head of a torch model, read off while the model runs over its training data.

What the layer sees is held in memory, or written to a cache.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from giveaway.checks import errors_about, fail
from giveaway.extract.batches import USUAL, Batches, Variants
from giveaway.extract.feature_cache import ROWS, FeatureCache, RowWriters, SharedCache
from giveaway.extract.head_layer import HeadLayer
from giveaway.extract.model_records import InputCollector
from giveaway.extract.reader import ORDERED, RecordReader, RowBuffers, as_loader, places_of, why_order_is_unknown
from giveaway.extract.torch_model import model_digest, same_random_states, untouched, unwrapped
from giveaway.linalg.processes import Processes
from giveaway.records.examples import infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import FileRows
from giveaway.records.witnesses import HELD_OUT, PREFIX, witnesses_in
from giveaway.storage.files import private_folder


@dataclass(frozen=True)
class InMemory:
    """Features and outputs are held in memory.

    inputs : keep what the model is given of each record as `head.inputs`, on the CPU and up to 2 GiB: images, tables
        (one tensor of floats or uint8 a batch) and strings, and nothing of other records.
    """

    inputs: bool = True


@dataclass(frozen=True)
class Cached:
    """Features and outputs are kept in a folder, and read in windows: the model runs once. A later call with the same
    model and data reads the data to see that they are, and runs nothing; `inputs` as in InMemory."""

    folder: str | os.PathLike[str]
    inputs: bool = True


def from_torch(
    model: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    loss: str = "auto",
    l2: float = 0.0,
    penalize_intercept: bool = True,
    batches: Batches = USUAL,
    sample_weight: Any = None,
    ids: Any = None,
    groups: Any = None,
    frozen: bool = False,
    keep: InMemory | Cached = InMemory(),  # noqa: B008 (frozen)
    relatives: bool | Mapping[str, Callable[[Any], Any]] | None = None,
    held_out: Any = None,
    class_names: Sequence[str] | None = None,
) -> Head:
    """Return the linear head of `model` with what it sees of each record in `data`, in the loader's order.

    The model runs once over `data` in evaluation mode, and over `relatives` of it, and is left exactly as it was. The
    data are read twice: rows are records only if both passes agree, so shuffling, dropping and random augmentation are
    refused, unless (for shuffling) the batches carry ids.

    data : a DataLoader, a Dataset or Hugging Face dataset (read in order), or (inputs, targets). Batches are (inputs,
        targets), or dicts, whose inputs are given to the model by keyword. A tuple or dict of inputs is unpacked.
    batches : `Batches(size, inputs, targets, ids)`, where a batch holds these elsewhere: Batches(ids=2) for (inputs,
        targets, ids).
    layer : name of the nn.Linear to take; by default the last to run, which must give the model's output. Of a layer
        that sees tokens, the one is taken whose outputs the model returns, as decoders do of the last before padding.
    loss, l2, penalize_intercept : as in `Head`. Weight decay wd on a mean cross-entropy is l2 = n * wd.
    sample_weight, ids, groups : one a record in dataset order, or (weights, groups) a dict from id to value.
    frozen : as in `Head`: whether nothing before the layer was trained on these records.
    keep : where features and outputs go: `InMemory()`, or `Cached(folder)` on the disk.
    relatives : variants of each record that the model is asked about while it runs, for `head.relatives`. Of images
        (floats or bytes (n, c, h, w) with 1 or 3 channels, 8 pixels or more a side) None asks about the mirror image
        and the image moved by 6 % of its sides, one way and the other: three forward passes more. A dict
        from names to functions, each of which turns a batch of inputs into as many variants in the same order, serves
        for other records. False asks nothing.
    held_out : a DataLoader or Dataset of records that the model was not trained on, for `head.held_out`. The model runs
        over it once, and its batches are read as those of `data`.
    class_names : what the classes are called; by default as the dataset says (`classes`, or the names of a Hugging Face
        feature), else the model's config (`id2label`).

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> records = TensorDataset(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> from_torch(model, records, l2=0.1)
    Head(n=6, d=4, m=2, loss='cross_entropy', l2=0.1, inputs=(3,))
    """
    module = unwrapped(model)
    reader = RecordReader(data, batches, ids_given=ids is not None)
    for argument, value in (("ids", ids), ("groups", groups), ("sample_weight", sample_weight)):
        _check_order_of(argument, value, reader.loader.dataset)
    run = _Run(reader, HeadLayer(module, layer), InputCollector(keep.inputs, reader.total), Variants(relatives))
    with errors_about("held_out "):
        others = None if held_out is None else RecordReader(held_out, batches)
    with untouched(module, reader.loader):
        if isinstance(keep, Cached):
            with FeatureCache(keep.folder).locked(new=True) as store:
                rows = _through_cache(run, others, store)
        else:
            buffers = RowBuffers(reader.total)
            run.into(buffers)
            rows = buffers.joined() | {"ids": reader.fingerprints.ids, "inputs": run.collector.joined()}
            if others is not None:
                rows |= _held_out(others, reader, run.layer)
        # Read inside: a parametrized weight (spectral norm) may change when it is read in training mode.
        weight, bias = run.layer.parameters()
    if rows["ids"] is None:
        rows["ids"] = ids
    rows |= witnesses_in(rows)
    loss = infer_loss(rows["targets"], rows["outputs"]) if loss == "auto" else loss
    if class_names is None and loss == "cross_entropy":
        class_names = _names_offered(module, reader.loader.dataset, max(2, rows["outputs"].shape[1]))
    return Head(
        **rows,
        rows_proved_by=reader.proof,
        loss=loss,
        l2=l2,
        intercept=bias is not None,
        penalize_intercept=penalize_intercept,
        weight=weight,
        bias=bias,
        sample_weight=_in_row_order("sample_weight", sample_weight, rows["ids"], reader.unknown_order),
        groups=_in_row_order("groups", groups, rows["ids"], reader.unknown_order),
        frozen=frozen,
        model=type(module).__name__,
        class_names=class_names,  # type: ignore[arg-type]
    )


def from_torch_shared(
    model: nn.Module,
    data: Any,
    processes: Processes,
    *,
    keep: InMemory | Cached,
    batches: Batches = USUAL,
    held_out: Any = None,
    **more: Any,
) -> Head:
    """Run `from_torch` by all `processes`, each over its share, and join the shares in a cache that all see. The
    records themselves are not kept; the first process runs the model over records held out."""
    if not isinstance(keep, Cached):
        expected = "a folder that all processes see, beside a model"
        raise fail("cache", expected, "none", "add --cache DIR: each process writes its share of the features there")
    loader = as_loader(data, batches.size)
    if (reason := why_order_is_unknown(loader)) is not None:
        raise fail("data", ORDERED, reason, "use shuffle=False and no sampler where several processes share the work")
    shared, size = SharedCache(private_folder(keep.folder)), processes.size
    mine = Subset(loader.dataset, processes.share(range(len(loader.dataset))))  # type: ignore[arg-type]
    options: Any = {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}
    share = DataLoader(mine, loader.batch_size or batches.size, shuffle=False, **options)
    kept = Cached(shared.share(processes.rank, size).path, inputs=False)
    others = held_out if processes.rank == 0 else None
    head = from_torch(model, share, keep=kept, batches=batches, held_out=others, **more)
    processes.barrier()
    parts = [shared.share(rank, size).arrays() for rank in range(size)]

    def joined(name: str) -> FileRows:
        return FileRows(name, [part[name] for part in parts])

    ids = [part["ids"] for part in parts if "ids" in part]
    return replace(
        head,
        features=joined("features"),
        outputs=joined("outputs"),
        targets=torch.cat([part["targets"] for part in parts]),
        ids=np.concatenate(ids) if len(ids) == size else None,  # type: ignore[arg-type]
        relatives={name: joined(PREFIX + name) for name in head.relatives or ()},
        held_out=None if held_out is None else tuple(parts[0][name] for name in HELD_OUT),
    )


@dataclass
class _Run:
    reader: RecordReader
    layer: HeadLayer
    collector: InputCollector
    variants: Variants

    def into(self, sink: RowBuffers | RowWriters) -> None:
        """Run the model, then read the data again to see that rows are records."""
        for number, batch in enumerate(self.reader.first_pass()):
            self.collector.add(batch)  # before a variant can write into the inputs
            rows = self.layer.rows_of(batch)
            self.layer.check_is_function(number, batch, rows)
            for name, block in zip(ROWS, (*rows, batch.targets), strict=True):
                sink.add(name, block)
            for name, outputs in self.variants.outputs(batch, lambda batch: self.layer.rows_of(batch)[1]):
                sink.add(PREFIX + name, outputs)
        self.reader.check_records()


def _held_out(records: RecordReader, training: RecordReader, layer: HeadLayer | None) -> dict[str, torch.Tensor]:
    """Run the model over records that it was not trained on, once; return outputs and targets. Without a layer only
    read them."""
    buffers = RowBuffers(records.total)
    with errors_about("held_out "), same_random_states(records.loader):
        for batch in records.first_pass():
            if layer is not None:
                buffers.add(HELD_OUT[0], layer.rows_of(batch)[1])
                buffers.add(HELD_OUT[1], batch.targets)
    if np.isin(records.fingerprints.hashes[:, 0], training.fingerprints.hashes[:, 0]).all():
        got = f"{records.fingerprints.rows} records, all of which are in data"
        raise fail("held_out", "records that the model was not trained on", got, "pass a validation set")
    return buffers.joined()


def _through_cache(run: _Run, others: RecordReader | None, store: FeatureCache) -> dict[str, Any]:
    """Map features and outputs from the cache; the model runs only where the cache is not whole yet."""
    reader, layer, known, relatives = run.reader, run.layer, store.facts(), list[str]()
    weights = model_digest(layer.model)
    if known is None:
        with store.writing() as writers:
            run.into(writers)
            relatives = [name.removeprefix(PREFIX) for name in writers.files if name not in ROWS]
    else:
        for batch in reader.first_pass():
            run.collector.add(batch)
            relatives = list(run.variants.choose(batch))
    prints = reader.fingerprints
    facts = {"model_sha256": weights, "rows": prints.rows, "rows_sha256": prints.digest(), "options": layer.options()}
    facts["relatives"] = relatives
    arrays: dict[str, Any] = {}
    if others is not None:
        arrays = _held_out(others, reader, layer if known is None else None)
        facts["held_out_sha256"] = others.fingerprints.digest()
    if known is None:
        weight, bias = layer.parameters()
        facts |= {"layer": layer.name, "proof": reader.proof}
        store.complete(facts, arrays | {"ids": prints.ids, "weight": weight, "bias": bias})
    else:
        store.check_made_of(known, facts)
        layer.choose(known["layer"])
        reader.proof = known.get("proof")
    names = (*ROWS, "ids", *(PREFIX + name for name in relatives), *(HELD_OUT if others is not None else ()))
    stored, inputs = store.arrays(), run.collector.joined()
    rows = {name: stored.get(name) for name in names}
    if inputs is not None and rows["ids"] is not None and prints.ids is not None:
        order = places_of(rows["ids"], prints.ids)
        inputs = [inputs[row] for row in order] if isinstance(inputs, list) else inputs[torch.from_numpy(order)]
    return rows | {"inputs": inputs}


def _names_offered(model: nn.Module, dataset: Any, count: int) -> tuple[str, ...] | None:
    """Return what the dataset, or the model's config, calls so many classes; None where neither has a name for each."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features, labels = getattr(dataset, "features", None), getattr(getattr(model, "config", None), "id2label", None)
    offered: list[Any] = [getattr(dataset, "classes", None)]
    offered += [getattr(kind, "names", None) for kind in (features.values() if isinstance(features, Mapping) else ())]
    offered += [[labels.get(number) for number in range(count)]] if isinstance(labels, Mapping) else []
    for names in offered:
        named = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
        if named and len(set(names)) == len(names) == count and names[0] != "LABEL_0":  # Hugging Face's name of none
            return tuple(names)
    return None


def _check_order_of(argument: str, value: Any, dataset: Any) -> None:
    """Refuse an array beside a Subset that has all records of its dataset in another order: it may be in either."""
    if value is None or isinstance(value, Mapping) or not isinstance(dataset, Subset):
        return
    if sorted(dataset.indices) == list(range(len(dataset))) != list(dataset.indices):
        got = "one beside a Subset of all records in another order"
        remedy = "pass the dataset itself, or put ids in the batches (Batches(ids=))"
        raise fail(argument, "one value a record, in the order of the rows", got, remedy)


def _in_row_order(argument: str, value: Any, names: Any, unknown_order: str | None) -> Any:
    if isinstance(value, Mapping):
        if names is None:
            raise fail(argument, "one value a record", "a dict without ids", "pass ids=, or ids in the batches")
        rows = names.tolist() if isinstance(names, np.ndarray | torch.Tensor) else list(names)
        if missing := sum(name not in value for name in rows):
            raise fail(argument, "a value for every id", f"none for {missing} of {len(rows)}", "add the missing ids")
        return np.array([value[name] for name in rows])
    if value is not None and unknown_order:
        got = f"an array, with rows in the order of {unknown_order}"
        raise fail(argument, "a dict from id to value", got, "key the values by id, or use a loader without shuffling")
    return value
