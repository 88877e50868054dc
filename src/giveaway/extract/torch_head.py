"""from_torch: the linear head of a torch model, read off while the model runs over its training data.

What the layer sees is held in memory, written to a cache, or streamed: read again from the model in each pass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from giveaway.checks import InputError, check_choice, fail, nearest
from giveaway.extract.feature_cache import ROWS, FeatureCache, SharedCache
from giveaway.extract.model_records import InputCollector, places_of
from giveaway.extract.reader import (
    ORDERED,
    BatchKeys,
    RecordBatch,
    RecordReader,
    RowBuffer,
    as_loader,
    why_order_is_unknown,
)
from giveaway.extract.torch_model import (
    LayerCall,
    call_watched,
    device_of,
    model_digest,
    storable,
    untouched,
    unwrapped,
)
from giveaway.linalg.processes import Processes
from giveaway.records.examples import infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import FileRows, Pair, Stream
from giveaway.storage.files import private_folder

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda tokens: tokens.mean(dim=1),
    "first": lambda tokens: tokens[:, 0],
    "last": lambda tokens: tokens[:, -1],
}


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
    head_layer = HeadLayer(module, layer, reduction, device, autocast)
    collector = InputCollector(keep_inputs, reader.total)
    with untouched(module, reader.loader):
        if stream:
            rows = _streamed(reader, head_layer, collector)
        elif cache is not None:
            store = FeatureCache(cache)
            store.claim()
            with store.locked():
                rows = _through_cache(reader, head_layer, collector, store)
        else:
            buffers = {name: RowBuffer(name, reader.total) for name in ROWS}
            _run(reader, head_layer, collector, buffers)
            rows = {name: buffer.joined() for name, buffer in buffers.items()}
            rows |= {"ids": reader.fingerprints.ids, "inputs": collector.joined()}
        # Read inside: a parametrized weight (spectral norm) may change when it is read in training mode.
        weight, bias = head_layer.parameters()
    if rows["ids"] is None:
        rows["ids"] = ids
    return Head(
        **rows,
        loss=infer_loss(rows["targets"], rows["outputs"]) if loss == "auto" else loss,
        l2=l2,
        intercept=bias is not None,
        penalize_intercept=penalize_intercept,
        weight=weight,
        bias=bias,
        sample_weight=_in_row_order("sample_weight", sample_weight, rows["ids"], reader.unknown_order),
        groups=_in_row_order("groups", groups, rows["ids"], reader.unknown_order),
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


def _run(reader: RecordReader, layer: HeadLayer, collector: InputCollector, sinks: Mapping[str, Any]) -> None:
    """Run the model over all records into `sinks`, and read the data again to see that rows are records."""
    for batch in reader.first_pass():
        collector.add(batch)  # before the model can write into its inputs
        for sink, block in zip(sinks.values(), (*layer.rows_of(batch), batch.targets), strict=True):
            sink.add(block)
    reader.check_second_pass()


def _through_cache(
    reader: RecordReader, layer: HeadLayer, collector: InputCollector, store: FeatureCache
) -> dict[str, Any]:
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
    return {"features": features, "outputs": outputs, "targets": targets, "ids": ids, "inputs": inputs}


def _streamed(reader: RecordReader, layer: HeadLayer, collector: InputCollector) -> dict[str, Any]:
    """Keep nothing but the targets: the model runs over the first batch here, and again in each later pass."""
    targets, first = RowBuffer("targets", reader.total), None
    weights = model_digest(layer.model)
    for batch in reader.first_pass():
        collector.add(batch)
        first = layer.rows_of(batch) if first is None else first
        targets.add(batch.targets)
    assert first is not None
    next(reader.later_pass())  # random augmentation and shuffling are refused here, not in a long audit

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
            yield pair

    prints = reader.fingerprints
    name = hashlib.sha256(f"{weights} {prints.digest()} {layer.options()}".encode()).hexdigest()
    features, outputs = Stream(begin, prints.rows, first, name=name, of_layer=True).rows()
    known = {"targets": targets.joined(), "ids": prints.ids, "inputs": collector.joined()}
    return {"features": features, "outputs": outputs} | known


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


class HeadLayer:
    """The nn.Linear called `requested`, or the last to run, which must give the model's output.

    Call it inside `untouched`.
    """

    def __init__(
        self, model: nn.Module, requested: str | None, reduction: str | None, device: Any, autocast: torch.dtype | None
    ) -> None:
        if reduction is not None:
            check_choice("reduction", reduction, REDUCTIONS)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise fail("autocast", "None, torch.bfloat16 or torch.float16", str(autocast), "choose one of these")
        self.model, self._requested = model, requested
        self._device, self._reduction, self._autocast = device_of(model, device), reduction, autocast
        self.name: str | None = None  # known after the first batch
        self._candidates = _linear_layers(model, requested)

    def rows_of(self, batch: RecordBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model on a batch; return features and outputs of its records on the CPU."""
        remedy = "name another with layer=, or build Head"
        with nullcontext() if self._autocast is None else torch.autocast(self._device.type, dtype=self._autocast):
            result, call = call_watched(self.model, *batch.inputs_on(self._device), self._candidates, remedy)
        if call is None and self._requested is not None:
            got = f"{self._requested!r}, which the forward leaves out"
            raise fail("layer", "a layer that runs", got, "name another")
        if call is None:
            raise _not_linear("no nn.Linear ran")
        features, outputs = self._reduced(call)
        if self._requested is None and not any(_is_output(result, output) for output in (call.outputs, outputs)):
            raise _not_linear(f"its last nn.Linear is {call.name!r}, its output is another")
        if self.name is None:
            self.choose(call.name)
        if features.ndim != 2 or len(features) != batch.rows:
            got = f"shape {tuple(features.shape)} for {batch.rows} targets"
            raise fail("layer", f"one row of features a record in layer {call.name!r}", got, "name another with layer=")
        return storable(features), storable(outputs)

    def choose(self, name: str) -> None:
        """From here on read the layer called `name` alone; refuse one whose weight another module shares."""
        layer = self._candidates.get(name) or _linear_layers(self.model, name)[name]
        mine = {(value.data_ptr(), value.device) for value in (layer.weight, layer.bias) if value is not None}
        for other_name, other in self.model.named_modules():
            for key, parameter in other.named_parameters(recurse=False) if other is not layer else ():
                if parameter.data_ptr() and (parameter.data_ptr(), parameter.device) in mine:
                    # the loss is then not convex in the weight
                    got = f"layer {name!r}, whose weight is tied to {f'{other_name}.{key}'.lstrip('.')!r}"
                    raise fail("layer", "a linear layer with weights of its own", got, "untie them and train again")
        self._candidates, self.name = {name: layer}, name

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.name is not None
        layer = self._candidates[self.name]
        bias = None if layer.bias is None else storable(layer.bias).clone()
        return storable(layer.weight).clone(), bias

    def options(self) -> dict[str, str | None]:
        """Return what the rows depend on besides model and data."""
        precision = None if self._autocast is None else str(self._autocast).removeprefix("torch.")
        return {"layer": self._requested, "reduction": self._reduction, "autocast": precision}

    def _reduced(self, call: LayerCall) -> Pair:
        """Return inputs and outputs, (batch, …, width) as (batch, width) where the user named a reduction."""
        shape = tuple(call.inputs.shape)
        if len(shape) > 2 and self._reduction is None:
            choices = " or ".join(map(repr, REDUCTIONS))
            expected = f"{choices}, since layer {call.name!r} sees (batch, tokens, features)"
            remedy = "name how a record's tokens become one row, or pool them before the head"
            raise fail("reduction", expected, f"None with shape {shape}", remedy)
        if len(shape) <= 2 and self._reduction is not None:
            expected = f"None, since layer {call.name!r} sees one row a record"
            raise fail("reduction", expected, f"{self._reduction!r} with shape {shape}", "drop reduction=")
        if self._reduction is None:
            return call.inputs, call.outputs
        reduce = REDUCTIONS[self._reduction]
        return reduce(call.inputs.flatten(1, -2)), reduce(call.outputs.flatten(1, -2))


def _linear_layers(model: nn.Module, requested: str | None) -> dict[str, nn.Linear]:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if requested is None:
        return linear
    modules = dict(model.named_modules(remove_duplicate=False))
    if requested not in modules:
        remedy = nearest(requested, linear) if linear else "the model has no nn.Linear"
        raise fail("layer", "the name of an nn.Linear in the model", repr(requested), remedy)
    module = modules[requested]
    if not isinstance(module, nn.Linear):
        got, remedy = f"{requested!r}, a {type(module).__name__}", "choose from " + ", ".join(list(linear)[:12])
        raise fail("layer", "an nn.Linear", got, remedy)
    return {requested: module}


def _not_linear(reason: str) -> InputError:
    expected, got = "a linear layer whose output is the model's output", f"a model whose head is not linear ({reason})"
    remedy = "return raw outputs (no softmax), name the layer with layer=, or build Head (a black box: features=None)"
    return fail("model", expected, got, remedy)


def _is_output(result: Any, candidate: torch.Tensor) -> bool:
    """Whether the model returned `candidate`, up to squeezed axes and the cast to another precision."""
    if isinstance(result, Mapping):
        result = result.get("logits", next(iter(result.values())) if len(result) == 1 else None)
    elif hasattr(result, "logits"):
        result = result.logits
    elif isinstance(result, tuple | list) and result:
        result = result[0]
    if not isinstance(result, torch.Tensor):
        return False
    if result.numel() != candidate.numel() or result.device != candidate.device:
        return False
    a, b = result.detach().reshape(-1).to(candidate.dtype), candidate.reshape(-1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
