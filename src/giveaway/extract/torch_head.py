"""from_torch: the linear head of a torch model, read off while the model runs over its training data.

What the layer sees is held in memory, written to a cache, or streamed: read again from the model in each pass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from giveaway.checks import fail
from giveaway.extract.batches import BatchKeys, RowBuffer, as_loader, check_same_kind
from giveaway.extract.feature_cache import ROWS, FeatureCache, SharedCache, opened
from giveaway.extract.model_records import InputCollector, places_of
from giveaway.extract.reader import ORDERED, RecordReader, why_order_is_unknown
from giveaway.extract.torch_model import HeadLayer, device_of, model_digest, untouched, unwrapped
from giveaway.linalg.processes import Processes
from giveaway.records.examples import infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import FileRows, Stream
from giveaway.storage.files import private_folder

Pair = tuple[torch.Tensor, torch.Tensor]


def from_torch(
    model: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    loss: str = "auto",
    l2: float = 0.0,
    penalize_intercept: bool = True,
    reduction: str | None = None,
    batch_size: int = 256,
    input_key: str | int | None = None,
    target_key: str | int | None = None,
    id_key: str | int | None = None,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    sample_weight: Any = None,
    ids: Any = None,
    groups: Any = None,
    frozen: bool = False,
    keep_inputs: bool | None = None,
    cache: str | os.PathLike[str] | None = None,
    stream: bool = False,
) -> Head:
    """Return the linear head of `model` with what it sees of each record in `data`, in the loader's order.

    The model runs once over `data` in evaluation mode and is left exactly as it was. The data are read twice:
    rows are records only if both passes agree, so shuffling, dropping and random augmentation are refused,
    unless (for shuffling) the batches carry ids.

    Parameters
    ----------
    data : a DataLoader, or a Dataset (read in order, `batch_size` records at a time). Batches are (inputs, targets),
        (inputs, targets, ids) with id_key=2, or dicts: targets under labels, label, targets, target or y, ids under
        ids or id, the rest given to the model by keyword. A tuple or dict of inputs is unpacked.
    layer : name of the nn.Linear to take; by default the last to run, which must give the model's output.
    loss, l2, penalize_intercept : as in `Head`. Weight decay wd on a mean cross-entropy is l2 = n * wd.
    reduction : "mean", "first" or "last" token, for a layer that sees (batch, tokens, features); padding counts.
    input_key, target_key, id_key : where the batch holds inputs, targets and ids, if not in the usual place.
    device : which of the model's devices takes the inputs (default: that of its first parameter).
    autocast : torch.bfloat16 or torch.float16, to run the model in mixed precision.
    sample_weight, ids, groups : one a record in dataset order, or (weights, groups) a dict from id to value.
    frozen : as in `Head`: whether nothing before the layer was trained on these records.
    keep_inputs : keep what the model is given of each record as `head.inputs`, on the CPU and up to 2 GiB. None keeps
        images, tables (one tensor of floats or uint8 a batch) and strings, and nothing where that cannot be; True says
        why not, False never keeps.
    cache : a folder for features and outputs, which are then never held in memory as a whole. The model runs once; a
        later call with the same model and data reads the data to see that they are, and runs nothing.
    stream : keep nothing: the model runs again over `data` in each pass of an audit, which holds a window of rows.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> records = TensorDataset(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> from_torch(model, records, l2=0.1)
    Head(n=6, d=4, m=2, loss='cross_entropy', l2=0.1, inputs=(3,))
    """
    module = unwrapped(model)
    if stream and cache is not None:
        raise fail("stream", "stream=True or cache=, not both", "both", "drop one of them")
    keys = BatchKeys(input_key, target_key, id_key)
    reader = RecordReader(data, batch_size, keys, ids_given=ids is not None)
    where = device_of(module, device)
    head_layer = HeadLayer(module, layer, reduction=reduction, device=where, autocast=autocast)
    collector = InputCollector(keep_inputs, reader.total)
    with untouched(module, reader.loader):
        if stream:
            rows = _streamed(reader, head_layer, collector)
        elif cache is not None:
            with opened(cache) as store:
                rows = _through_cache(reader, head_layer, collector, store)
        else:
            rows = _in_memory(reader, head_layer, collector)
        # Read inside: a parametrized weight (spectral norm) may change when it is read in training mode.
        weight, bias = head_layer.parameters()
    names = ids if rows.ids is None else rows.ids
    return Head(
        features=rows.features,
        outputs=rows.outputs,
        targets=rows.targets,
        loss=infer_loss(rows.targets, rows.outputs) if loss == "auto" else loss,
        l2=l2,
        intercept=bias is not None,
        penalize_intercept=penalize_intercept,
        weight=weight,
        bias=bias,
        sample_weight=_in_row_order("sample_weight", sample_weight, names, reader.unknown_order),
        ids=names,
        groups=_in_row_order("groups", groups, names, reader.unknown_order),
        inputs=rows.inputs,
        frozen=frozen,
    )


def from_torch_shared(
    model: nn.Module, data: Any, processes: Processes, *, cache: str | None = None, batch_size: int = 256, **more: Any
) -> Head:
    """Run `from_torch` by all `processes`, each over its share of the records; return the head of all of them.

    The shares meet in a feature cache that every process sees. The records themselves are not kept.
    """
    if cache is None:
        expected = "a folder that all processes see, beside a model"
        raise fail("cache", expected, "none", "add --cache DIR: each process writes its share of the features there")
    loader = as_loader(data, batch_size)
    if (reason := why_order_is_unknown(loader)) is not None:
        raise fail("data", ORDERED, reason, "use shuffle=False and no sampler where several processes share the work")
    shared, size = SharedCache(private_folder(cache)), processes.size
    share = DataLoader(
        Subset(loader.dataset, processes.share(range(len(loader.dataset)))),  # type: ignore[arg-type]
        batch_size=loader.batch_size or batch_size,
        shuffle=False,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )
    more |= {"keep_inputs": False, "cache": shared.part(processes.rank, size).path}
    head = from_torch(model, share, **more)
    processes.barrier()
    parts = [shared.part(rank, size).arrays() for rank in range(size)]
    ids = [names for *_, names in parts if names is not None]
    return replace(
        head,
        features=FileRows("features", [features for features, *_ in parts]),
        outputs=FileRows("outputs", [outputs for _, outputs, *_ in parts]),
        targets=torch.cat([targets for _, _, targets, _ in parts]),
        ids=np.concatenate(ids) if len(ids) == size else None,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _HeadRows:
    """What was read of all records; `inputs` are None where they were not kept, `ids` where the batches had none."""

    features: Any
    outputs: Any
    targets: torch.Tensor
    ids: np.ndarray | None
    inputs: Any


def _run(reader: RecordReader, layer: HeadLayer, collector: InputCollector, sinks: Mapping[str, Any]) -> None:
    """Run the model over all records into `sinks`, and read the data again to see that rows are records."""
    for batch in reader.first_pass():
        collector.add(batch)  # before the model can write into its inputs
        for sink, block in zip(sinks.values(), (*layer.rows_of(batch), batch.targets), strict=True):
            sink.add(block)
    reader.check_second_pass()


def _in_memory(reader: RecordReader, layer: HeadLayer, collector: InputCollector) -> _HeadRows:
    """Hold features and outputs in memory; the model runs once."""
    buffers = {name: RowBuffer(name, reader.total) for name in ROWS}
    _run(reader, layer, collector, buffers)
    features, outputs, targets = (buffer.joined() for buffer in buffers.values())
    return _HeadRows(features, outputs, targets, reader.fingerprints.ids, collector.joined())


def _through_cache(reader: RecordReader, layer: HeadLayer, collector: InputCollector, store: FeatureCache) -> _HeadRows:
    """Map features and outputs from the cache; the model runs only where the cache is not whole yet."""
    weights, known = model_digest(layer.model), store.facts()
    if known is None:
        with store.writing() as writers:
            _run(reader, layer, collector, writers)
    else:
        for batch in reader.first_pass():
            collector.add(batch)
    prints = reader.fingerprints
    facts = {"model_sha256": weights, "rows": prints.rows, "rows_sha256": prints.digest(), "options": layer.options()}
    if known is None:
        weight, bias = layer.parameters()
        store.complete(facts | {"layer": layer.name}, {"ids": prints.ids, "weight": weight, "bias": bias})
    else:
        store.check_made_of(facts)
        layer.choose(known["layer"])
    features, outputs, targets, ids = store.arrays()
    inputs = collector.joined()
    if inputs is not None and ids is not None and prints.ids is not None:
        order = places_of(ids, prints.ids)
        inputs = [inputs[row] for row in order] if isinstance(inputs, list) else inputs[torch.from_numpy(order)]
    return _HeadRows(features, outputs, targets, ids, inputs)


def _streamed(reader: RecordReader, layer: HeadLayer, collector: InputCollector) -> _HeadRows:
    """Keep nothing but the targets: the model runs over the first batch here, and again in each later pass."""
    targets, first = RowBuffer("targets", reader.total), None
    weights = model_digest(layer.model)
    for batch in reader.first_pass():
        collector.add(batch)
        first = layer.rows_of(batch) if first is None else first
        targets.add(batch.targets)
    assert first is not None
    next(reader.later_pass())  # random augmentation and shuffling are refused here, not in a long audit
    like = (first[0][:0].clone(), first[1][:0].clone())

    def begin() -> Iterator[Pair]:
        if model_digest(layer.model) != weights:
            got = "weights that changed after from_torch"
            raise fail("model", "the same model in every pass", got, "call from_torch again, or cache= the features")
        later = reader.later_pass()
        while True:
            # Batch by batch: between two of them the model is the user's, as it was.
            with untouched(layer.model, reader.loader):
                batch = next(later, None)
                if batch is None:
                    return
                pair = layer.rows_of(batch)
            for name, block, known in zip(("features", "outputs"), pair, like, strict=True):
                check_same_kind(name, block, known)
            yield pair

    prints = reader.fingerprints
    name = hashlib.sha256(f"{weights} {prints.digest()} {layer.options()}".encode()).hexdigest()
    features, outputs = Stream(begin, prints.rows, like, name=name, of_layer=True).rows()
    return _HeadRows(features, outputs, targets.joined(), prints.ids, collector.joined())


def _in_row_order(argument: str, value: Any, names: Any, unknown_order: str | None) -> Any:
    """Return weights or groups in the order of the rows; a dict is looked up by id."""
    if isinstance(value, Mapping):
        if names is None:
            raise fail(argument, "one value a record", "a dict without ids", "pass ids=, or ids in the batches")
        rows = names.tolist() if isinstance(names, np.ndarray | torch.Tensor) else list(names)
        missing = sum(name not in value for name in rows)
        if missing:
            raise fail(argument, "a value for every id", f"none for {missing} of {len(rows)}", "add the missing ids")
        return np.array([value[name] for name in rows])
    if value is not None and unknown_order:
        got = f"an array, with rows in the order of {unknown_order}"
        raise fail(argument, "a dict from id to value", got, "key the values by id, or use a loader without shuffling")
    return value
