"""The options of commands: read from flags, TOML files and NAME=VALUE, and made into what they name.

That is a head (arrays, torch, scikit-learn), the network around it, or the arguments of ga.audit.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from giveaway.auditing.cost import TimedCost, price_texts
from giveaway.auditing.depths import METHODS, PROBES, DepthAudit, Method
from giveaway.checks import InputError, check_choice, check_number, fail, nearest
from giveaway.curvature.choice import Auto, Dense, Sketch, check_probes
from giveaway.extract import Batches, Cached, InMemory, from_file, from_sklearn, from_torch
from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.model_records import inputs_of_head
from giveaway.extract.text_gradients import TextCurvature
from giveaway.extract.torch_head import from_torch_shared
from giveaway.extract.torch_model import load_weights
from giveaway.extract.user_files import call_factory, load_estimator, names_in, records_from
from giveaway.gp import Process
from giveaway.linalg.processes import ALONE, Processes
from giveaway.network.network import Depths, checked_depths
from giveaway.network.solves import Solves
from giveaway.records import Head, LossTrace
from giveaway.records.texts import Texts
from giveaway.storage.files import read_toml

Options = dict[str, Any]
Say = Callable[[str], Any]

WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
OF_SKETCH = ("probes", "tolerance", "precision", "memory", "allow_unconverged", "seed", "errors")
OF_DEPTH = ("damping", "depth_method", "depth_probes")
OF_HEAD = ("loss", "l2", "penalize_intercept", "frozen")
OF_TORCH = ("layer", "relatives")
OF_DATA = ("data", "held_out", "allow_pickle")
OF_RECORDS = ("inputs", "kernel", "noise", "curvature", "optimum", *OF_SKETCH)
TAKES = {  # the options of each source, besides those that all share
    "features": {*OF_RECORDS, *OF_HEAD},
    "model": {"weights", "depth", "batch_size", "cache", *OF_DATA, *OF_RECORDS, *OF_HEAD, *OF_TORCH, *OF_DEPTH},
    "estimator": {*OF_DATA, *OF_RECORDS},
    "lm": {"data", "base", "tokenizer", "max_length", "continued", "through", "batch_size"},
}
TOKENIZERS = ("tokenizer_config.json", "tokenizer.json")
AT_HOME = {"local_files_only": True}  # nothing is downloaded
CLOSE = 10.0  # outputs of two passes may differ by this times the root of their precision


def source_from(
    options: Options, say: Say, processes: Processes = ALONE, *, dry_run: bool = False
) -> tuple[Head | Texts | TimedCost, DepthAudit | None]:
    """Return the head, or texts, that `options` name and, where scores go deeper, the audit of the network around it.
    With `dry_run` no language model is run over all texts: that is priced."""
    named = [name for name in TAKES if name in options]
    if len(named) != 1:
        given = " and ".join(f"--{name}" for name in named) or "none"
        known = ", ".join(f"--{name}" for name in TAKES).replace(", --lm", " and --lm")
        raise InputError(f"audit: expected one of {known}, got {given}; give one of them")
    (source,) = named
    for name in sorted(set.union(*TAKES.values()) - TAKES[source]):
        if name in options:
            fit = " or ".join(f"--{other}" for other, taken in TAKES.items() if name in taken)
            raise fail(name, f"{fit} beside it", f"--{source}", f"drop {name}")
    if source != "features" and "data" not in options:
        raise fail("data", f"--data module:function beside --{source}", "none", "name your data set")
    depth, deeper = _depth_audit(options, processes), None
    names = {name: names_in(options[name], name) for name in ("groups", "ids") if name in options}
    if source == "lm":
        return _from_lm(options, say, processes, names, dry_run), None
    if source == "model":
        head, deeper = _from_model(options, say, processes, depth)
    elif source == "features":
        head, notes = from_file(options["features"], **_given(options, OF_HEAD))
        for note in notes:
            say(f"note: {note}")
    else:
        estimator = load_estimator(options["estimator"], allow_pickle=bool(options.get("allow_pickle")))
        data, others = (_inputs_and_targets(options, say, name) for name in ("data", "held_out"))
        head = from_sklearn(estimator, *data, held_out=others, **names)
        if head.n < len(data[1]):
            say(f"note: {len(data[1]) - head.n} records that early stopping kept out of training count as held out")
        return head, None
    return head.named(**names), deeper


def _given(options: Mapping[str, Any], names: Iterable[str]) -> Options:
    return {name: options[name] for name in names if name in options}


def _called(options: Options, say: Say, *names: str) -> list[Any]:
    say(f"Running your code: {' and '.join(options[name] for name in names)}")
    return [call_factory(name, options[name]) for name in names]


def _inputs_and_targets(options: Options, say: Say, name: str) -> Any:
    if name not in options:
        return None
    (data,) = _called(options, say, name)
    if not isinstance(data, tuple) or len(data) != 2:
        raise fail(name, "a function that returns (X, y) beside --estimator", type(data).__name__, "return both")
    return data


def _from_model(
    options: Options, say: Say, processes: Processes, depth: Callable[..., DepthAudit] | None
) -> tuple[Head, DepthAudit | None]:
    device = processes.device if processes.size > 1 else device_named(options.get("device"))
    model, data = _called(options, say, "model", "data")
    if "weights" not in options:
        say("note: no --weights: the model is audited as your function makes it")
    else:
        model = load_weights(model, options["weights"], allow_pickle=bool(options.get("allow_pickle")), say=say)
    if device is not None and isinstance(model, torch.nn.Module):
        model = model.to(device)
    taken = _given(options, (*OF_HEAD, *OF_TORCH))
    own = "inputs" not in options
    taken["keep"] = Cached(options["cache"], own) if "cache" in options else InMemory(own)
    taken["batches"] = Batches(options.get("batch_size", 256))
    if "held_out" in options:
        (taken["held_out"],) = _called(options, say, "held_out")
    if processes.size > 1:
        return from_torch_shared(model, data, processes, **taken), None
    head = from_torch(model, data, **taken)
    if depth is None:
        return head, None
    inputs = inputs_of_head(data, head, batches=taken["batches"])
    deeper = depth(model, (inputs, head.targets), head.loss)
    outputs = deeper.deep.first.outputs()
    known = head.outputs[: head.n].to(outputs.device)
    loose = CLOSE * max(torch.finfo(tensor.dtype).eps for tensor in (known, outputs)) ** 0.5
    if not bool((outputs - known).abs().max() <= loose * known.abs().max().clamp_min(1e-30)):
        expected, got = "the same outputs of the model in every pass", "others where the network is run again"
        raise fail("model", expected, got, "turn off random layers and what depends on the calls before")
    return head, deeper


def _from_lm(
    options: Options, say: Say, processes: Processes, names: Mapping[Any, Any], dry_run: bool
) -> Texts | TimedCost:
    if processes.size > 1:
        raise fail("lm", "one process", f"{processes.size} of torchrun", "start it without torchrun")
    device, named = device_named(options.get("device")), _given(options, ("lm", "base", "tokenizer", "data"))
    if code := [reference for reference in named.values() if _is_code(reference)]:
        say(f"Running your code: {' and '.join(dict.fromkeys(code))}")
    model, tokenizer = _loaded("lm", options["lm"])
    base = _loaded("base", options["base"])[0] if "base" in options else None
    if "tokenizer" in options:
        reference = options["tokenizer"]
        tokenizer = call_factory("tokenizer", reference) if _is_code(reference) else _tokenizer(reference)
    if device is not None:
        model, base = (one if one is None or not hasattr(one, "to") else one.to(device) for one in (model, base))
    arguments: Options = {"model": model, "dataset": call_factory("data", options["data"]), "tokenizer": tokenizer}
    arguments |= {"base": base, **_given(options, ("batch_size", "max_length"))}
    through = options.get("through", "head")
    layers = through if through in ("head", "adapters") else [name.strip() for name in through.split(",")]
    arguments["curvature"] = None if through == "none" else TextCurvature(layers)
    if "continued" in options:
        counts = options["continued"].split(",")
        if len(counts) != 2 or not all(count.strip().isdecimal() for count in counts):
            raise fail("continued", "two whole numbers such as 50,50", repr(options["continued"]), "give both counts")
        arguments["continued"] = tuple(map(int, counts))
    groups = None if options.get("by") == "record" else names.get("groups")
    if dry_run:
        return price_texts(**arguments)
    return from_causal_lm(**arguments, ids=names.get("ids"), groups=groups, progress=True)


def _is_code(reference: str) -> bool:
    """Whether an option names a function of the user's, not a folder or a model of the hub."""
    return ":" in reference and not Path(reference).exists()


def _loaded(argument: str, reference: str) -> tuple[Any, Any]:
    """Return a model and its tokenizer, or None where there is none: of a function, of a folder or of the hub."""
    if _is_code(reference):
        made = call_factory(argument, reference)
        return made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    folder = Path(reference)
    try:
        if (folder / "adapter_config.json").is_file():
            if not (folder / "adapter_model.safetensors").is_file():
                raise fail(argument, "adapters in safetensors", "none in the folder", "save them with save_pretrained")
            peft = _library("peft", argument)
            before = peft.PeftConfig.from_pretrained(reference).base_model_name_or_path
            model = peft.PeftModel.from_pretrained(_pretrained(argument, before), reference)
        else:
            model = _pretrained(argument, reference)
    except InputError:  # a ValueError too, whose words are ours
        raise
    except (OSError, ValueError) as error:
        expected = "module:function, a folder of save_pretrained with safetensors, or a model that was downloaded"
        remedy = "check the spelling, or write a function that returns (model, tokenizer)"
        raise fail(argument, expected, repr(reference), remedy) from error
    there = not folder.is_dir() or any((folder / name).is_file() for name in TOKENIZERS)
    return model, _tokenizer(reference) if there and argument == "lm" else None


def _pretrained(argument: str, reference: str) -> Any:
    transformers = _library("transformers", argument)
    transformers.utils.logging.disable_progress_bar()
    pair = transformers.AutoConfig.from_pretrained(reference, **AT_HOME).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    return auto.from_pretrained(reference, use_safetensors=True, **AT_HOME)  # other weights are pickled


def _tokenizer(reference: str) -> Any:
    transformers = _library("transformers", "tokenizer")
    try:
        return transformers.AutoTokenizer.from_pretrained(reference, **AT_HOME)
    except (OSError, ValueError) as error:
        expected = "module:function, or a folder of save_pretrained with a tokenizer"
        raise fail("tokenizer", expected, repr(reference), "save it beside the model") from error


def _library(name: str, argument: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        remedy = "install them: pip install 'giveaway[lm]'"
        raise fail(argument, f"{name} installed for a folder or a name", "none", remedy) from error


def _depth_audit(options: Options, processes: Processes) -> Callable[..., DepthAudit] | None:
    """Check the options of scores through the network; return what makes the audit from model, data and loss."""
    if "depth" not in options:
        for name in OF_DEPTH:
            if name in options:
                raise fail(name, "--depth beside it", "none", f"name a depth, or drop {name}")
        return None
    if "layer" in options:
        got = "layer, by which the head may be another layer than the network's"
        raise fail("depth", "the network as it is, in memory", got, "drop layer, or --depth")
    if processes.size > 1:
        got = f"{processes.size} of torchrun"
        raise fail("depth", "one process", got, "audit deeper by one process, without torchrun")
    if "damping" not in options:
        remedy = "n times the weight decay that a mean loss was trained with"
        raise fail("damping", "--damping beside --depth", "none", f"give one: {remedy}, as docs/network.md says")
    depths = checked_depths("depth", [name.strip() for name in options["depth"].split(",")])
    solves = _given(options, ("tolerance", "allow_unconverged"))
    if check_choice("depth_method", options.get("depth_method", "sketch"), METHODS.values()) == "sketch":
        method: Method = Sketch(probes=options.get("depth_probes", PROBES), seed=options.get("seed", 0), **solves)
    elif "depth_probes" in options:
        raise fail("depth_probes", "a sketch", "depth_method=exact", "drop one of them")
    else:
        method = Solves(**solves)
    shared = _given(options, ("damping", "memory"))
    return lambda model, data, loss: DepthAudit(
        Depths(model, data, loss=loss, depths=depths, **shared), curvature=method
    )


def device_named(name: str | None) -> torch.device | None:
    """Return the device that an option names; None where there is none."""
    try:
        device = None if name is None else torch.empty(0, device=name).device
        if device is not None and device.type not in ("cpu", "cuda"):
            raise RuntimeError(name)
        return device
    except (RuntimeError, AssertionError) as error:
        raise fail("device", "a device that torch can use here", repr(name), "leave it out, or say cpu") from error


def read_config(given: Iterable[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the options in TOML files and NAME=VALUE settings, the last of each; a list of names means them joined."""
    resolved: dict[str, Any] = {}
    for text in given:
        setting = re.match(r"([A-Za-z][A-Za-z0-9_-]*)=(.*)", text, re.DOTALL)
        told = {setting[1]: setting[2]} if setting else read_toml("config", text, "a readable TOML file, or NAME=VALUE")
        for key, value in told.items():
            if (name := key.replace("-", "_")) not in kinds:
                raise fail("config", "options of this command", f"{key!r}", nearest(name, kinds))
            kind, read = kinds[name], value
            if setting and kind is not str:
                with suppress(KeyError, ValueError):
                    read = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
            elif kind is str and isinstance(value, list) and all(isinstance(part, str) for part in value):
                read = ",".join(value)
            allowed = (float, int) if kind is float else kind
            if not isinstance(read, allowed) or (isinstance(read, bool) and kind is not bool):
                raise fail("config", f"{WORDS[kind]} for {key}", repr(value), "correct it")
            resolved[name] = read
    return resolved


def to_toml(options: dict[str, Any]) -> str:
    """Write flat options as TOML."""
    # JSON's escapes are TOML's too, but for surrogate pairs; JSON leaves DEL as it is, which TOML does not take.
    text = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in options.items())
    text = text.replace("\x7f", "\\u007f")
    # a file name that is no UTF-8 holds halves of surrogate pairs
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half.group()):04x}", text)


def options_of(config: Iterable[str], flags: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the options of --config, and the flags, which go before them."""
    options = read_config(config, kinds) | {name: value for name, value in flags.items() if value is not None}
    for name in {"top", "batch_size"} & options.keys():
        check_number(name, options[name], minimum=1, remedy="give a count")
    check_number("l2", options.get("l2", 0.0), minimum=0.0, remedy="give the penalty in summed-loss units")
    check_choice("by", options.get("by", "auto"), ("auto", "person", "record"))
    return options


def audited_head(head: Any, options: Mapping[str, Any]) -> Any:
    """Return the head, or texts, with the records of --inputs, by person or by record."""
    if "inputs" in options:
        head = replace(head, inputs=records_from(options["inputs"]))
    elif {"kernel", "noise"} & options.keys() and head.inputs is None:
        raise fail("inputs", "--inputs beside kernel and noise", "none", "name the file of the records")
    if options.get("by") == "person" and head.groups is None:
        raise fail("by", "--groups beside person", "none", "give a file with one person's name a record")
    return replace(head, groups=None) if options.get("by") == "record" else head


def audit_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ga.audit; --inputs ask for fused by name, so that unusable ones are an error."""
    scores = options.get("scores", "default,fused" if "inputs" in options else "default")
    process = _given(options, ("kernel", "noise"))
    sketch, kind = Sketch(**_given(options, OF_SKETCH)), options.get("curvature", "auto")
    check_probes(sketch)
    if kind == "dense" and sketch.errors:
        raise fail("errors", "a sketched curvature", "none: dense scores are exact", "leave errors out")
    chosen: Any = {"dense": Dense(), "sketch": sketch, "auto": Auto(memory=sketch.memory, sketch=sketch)}[kind]
    return {
        "curvature": chosen,
        "scores": [name.strip() for name in scores.split(",")],
        "trace": LossTrace(options["trace"]) if "trace" in options else None,
        "kernel": Process(**process) if process else None,
        "optimum": options.get("optimum", "assumed"),
    }
