"""Make the attack truth on which the views of a record are compared: augmented ResNet-9 and plain CNN on BloodMNIST.

Each recipe gets --models models, each trained on a random half of the 11,959 images (the next one on the other half).
A command ends after --limit seconds; run it again to go on, a model that is stored is not trained again. In --to:

blood_RECIPE_signals.npz : φ of all models (models, N), `members` in packed bits, `labels`.
blood_RECIPE_target_K.npz : of the first --targets models what an audit can be given. For the records trained on
    (`index`): `features`, `outputs`, `mirror` and `shift` (6, n, 8) (outputs on mirrored images, and on images moved by
    two pixels as SHIFTS says, their border mirrored), `losses_seen` and `losses_after` (epochs, n): as training
    computed them, and of a pass after each epoch. For the others (`held_index`): `held_outputs`, `mirror_held`,
    `shift_held`. The head's `weight` and `bias`; `all_outputs` for all records in order.

    python -m benchmarks.views_blood_truth --data DIR --to DIR [--device cuda] [--recipe resnet9 cnn] [--models 80]
        [--targets 6] [--limit 540]

--data holds bloodmnist_28_train.npz.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.data import arrays, standardized_images
from benchmarks.measuring import read_options
from benchmarks.recipes import RECIPES, Recipe, signals_of
from benchmarks.stacked import State, train_stacked
from giveaway.attacks.shadow import OnModel, TrainedModel, collect_shadows
from giveaway.attacks.shadow_store import balanced_membership, model_seed, plan_of_halves, stored_seconds
from giveaway.extract.batches import shifted
from giveaway.records import Signals
from giveaway.storage.files import write_atomically

CHANGED: dict[str, dict[str, Any]] = {  # a fifth of CIFAR-10's steps, and the CNN in the precision of a GPU
    "resnet9": {"batch_size": 300, "learning_rate": 0.2},
    "cnn": {"precision": "bfloat16"},
}
SEED = 7
SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1))  # steps of two pixels, down and to the right
BLOCK = 1000


def images_and_labels(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return BloodMNIST's training images (N, 3, 28, 28), standardized, and their classes."""
    images, labels = arrays(folder / "bloodmnist_28_train.npz", "images", "labels")
    return standardized_images(images), labels.astype(np.int64).reshape(-1)


def recipe_of(name: str) -> Recipe:
    recipe = RECIPES[name]
    assert recipe.training is not None
    return replace(recipe, training=replace(recipe.training, **CHANGED[name]))


def make_truth(
    recipe: Recipe,
    x: np.ndarray,
    y: np.ndarray,
    to: Path,
    *,
    models: int,
    targets: int,
    device: str = "cpu",
    on_model: OnModel | None = None,
) -> Signals:
    """Train the models that are missing in the folder `to`, and write `to`_target_K.npz of the targets among them."""
    assert recipe.build is not None
    assert recipe.training is not None
    make = partial(recipe.build, x.shape[1:], int(y.max()) + 1)
    members, training = balanced_membership(models, len(x), seed=SEED), recipe.training
    seeds = [model_seed(number, seed=SEED) for number in range(models)]
    fingerprint = {"inputs": x, "training": asdict(training), "architecture": str(make()), "targets": targets}
    seen: dict[int, list[np.ndarray]] = {number: [] for number in range(targets)}
    after: dict[int, list[np.ndarray]] = {number: [] for number in range(targets)}
    states: dict[int, State] = {}

    def record(number: int, epoch: int, losses: torch.Tensor, evaluate: Callable[[], torch.Tensor]) -> None:
        if number < targets:
            own = torch.from_numpy(members[number])
            now = nn.functional.cross_entropy(evaluate().float(), torch.from_numpy(y), reduction="none")
            seen[number].append(losses[own].half().numpy())
            after[number].append(now[own].half().numpy())

    def train_missing(missing: Sequence[int]) -> Iterator[TrainedModel]:
        trained = train_stacked(
            make, x, y, members, training, seeds=seeds, numbers=missing, models_at_once=recipe.models_at_once,
            stack=recipe.stack, device=device, on_epoch=record, on_trained=states.__setitem__,
        )  # fmt: skip
        began = time.perf_counter()
        for number, outputs in trained:
            state = states.pop(number)
            if number not in missing:
                continue
            if number < targets:
                model = make().to(device)
                model.load_state_dict(state)
                held = audited_with(model.eval(), torch.from_numpy(x).to(device), members[number])
                held |= {"all_outputs": outputs, "held_outputs": outputs[~members[number]]}
                held |= {"losses_seen": np.stack(seen[number]), "losses_after": np.stack(after[number])}
                write_atomically(target_file(to, number), partial(np.savez, **held))
            yield TrainedModel(number, signals_of(outputs, y, "phi").astype(np.float16), time.perf_counter() - began)
            began = time.perf_counter()

    plan = plan_of_halves(len(x), models, "phi", fingerprint, SEED, labels=y)
    return collect_shadows(train_missing, plan, folder=to, on_model=on_model)


def target_file(to: Path, number: int) -> Path:
    return to.with_name(f"{to.name}_target_{number}.npz")


@torch.no_grad()
def audited_with(model: nn.Module, x: torch.Tensor, member: np.ndarray) -> dict[str, np.ndarray]:
    """Return the head of a trained model, what it saw, and its outputs on relatives of the records."""
    body, head = model[:-1], model[-1]  # type: ignore[index]

    def outputs(change: Callable[[torch.Tensor], torch.Tensor], part: nn.Module = model) -> np.ndarray:
        return torch.cat([part(change(block)).cpu() for block in x.split(BLOCK)]).numpy()

    features = outputs(lambda images: images, body)[member]
    mirror = outputs(lambda images: images.flip(-1)).astype(np.float16)
    moves = [partial(shifted, down=down, right=right) for down, right in SHIFTS]
    shift = np.stack([outputs(move) for move in moves]).astype(np.float16)
    given = torch.from_numpy(features).to(x.device)
    return {
        "index": np.flatnonzero(member),
        "held_index": np.flatnonzero(~member),
        "features": features.astype(np.float16),
        "weight": head.weight.cpu().numpy(),
        "bias": head.bias.cpu().numpy(),
        "outputs": head(given).cpu().numpy(),
        "mirror": mirror[member],
        "mirror_held": mirror[~member],
        "shift": shift[:, member],
        "shift_held": shift[:, ~member],
    }


def main() -> None:
    told: dict[str, Any] = {"data": Path, "to": Path, "device": "cuda", "recipe": CHANGED, "models": 80, "targets": 6}
    options = read_options(__doc__, needs=("data", "to"), **told, limit=540.0)
    options.to.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    x, y = images_and_labels(options.data)
    began = time.perf_counter()

    def stop_in_time(done: int, total: int) -> None:
        if time.perf_counter() - began > options.limit and done < total:
            raise TimeoutError(f"{done} of {total} models are stored")

    asked = {"models": options.models, "targets": options.targets, "device": options.device}
    for name in options.recipe:
        folder = options.to / f"blood_{name}"
        try:
            signals = make_truth(recipe_of(name), x, y, folder, on_model=stop_in_time, **asked)
        except TimeoutError as stopped:
            print(f"{name}: {stopped}; run the command again to go on", flush=True)
            return
        packed = np.packbits(signals.members, axis=1)
        phi = np.asarray(signals.values[:, :, 0])
        write_atomically(
            folder.with_name(f"{folder.name}_signals.npz"),
            partial(np.savez_compressed, phi=phi, members=packed, labels=y),
        )
        seconds = stored_seconds(folder, options.models)
        print(f"{name}: {options.models} models in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
