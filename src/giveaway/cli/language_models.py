"""What `giveaway audit --lm` names: a language model, its tokenizer, its base and its documents, read or priced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from giveaway.checks import fail
from giveaway.extract.user_files import call_factory

FILES = ("tokenizer_config.json", "tokenizer.json")
AT_HOME = {"local_files_only": True}  # nothing is downloaded
EXTRA = "install them: pip install 'giveaway[lm]'"


def lm_arguments(options: Mapping[str, Any], say: Any, device: Any) -> dict[str, Any]:
    """Return the arguments of `from_causal_lm` that the options name; the user's functions run."""
    named = {name: options[name] for name in ("lm", "base", "tokenizer", "data") if name in options}
    if code := [reference for reference in named.values() if is_code(reference)]:
        say(f"Running your code: {' and '.join(dict.fromkeys(code))}")
    model, tokenizer = _loaded("lm", options["lm"])
    base = _loaded("base", options["base"])[0] if "base" in options else None
    if "tokenizer" in options:
        reference = options["tokenizer"]
        tokenizer = call_factory("tokenizer", reference) if is_code(reference) else _tokenizer(reference)
    if device is not None:
        model, base = (one if one is None or not hasattr(one, "to") else one.to(device) for one in (model, base))
    documents = call_factory("data", options["data"])
    beside = {name: options[name] for name in ("batch_size", "max_length") if name in options}
    return {"model": model, "dataset": documents, "tokenizer": tokenizer, "base": base, **beside}


def is_code(reference: str) -> bool:
    """Whether an option names a function of the user's, not a folder or a model of the hub."""
    return ":" in reference and not Path(reference).exists()


def _loaded(argument: str, reference: str) -> tuple[Any, Any]:
    """Return a model and its tokenizer, or None where there is none: of a function, of a folder or of the hub."""
    if is_code(reference):
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
    except (OSError, ValueError) as error:
        expected = "module:function, a folder of save_pretrained with safetensors, or a model that was downloaded"
        remedy = "check the spelling, or write a function that returns (model, tokenizer)"
        raise fail(argument, expected, repr(reference), remedy) from error
    there = not folder.is_dir() or any((folder / name).is_file() for name in FILES)
    return model, _tokenizer(reference) if there and argument == "lm" else None


def _pretrained(argument: str, reference: str) -> Any:
    transformers = _library("transformers", argument)
    transformers.utils.logging.disable_progress_bar()
    pair = transformers.AutoConfig.from_pretrained(reference, **AT_HOME).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    return auto.from_pretrained(reference, use_safetensors=True, **AT_HOME)  # other weights are pickled


def _tokenizer(reference: str) -> Any:
    try:
        return _library("transformers", "tokenizer").AutoTokenizer.from_pretrained(reference, **AT_HOME)
    except (OSError, ValueError) as error:
        expected = "module:function, or a folder of save_pretrained with a tokenizer"
        raise fail("tokenizer", expected, repr(reference), "save it beside the model") from error


def _library(name: str, argument: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise fail(argument, f"{name} installed for a folder or a name", "none", EXTRA) from error
