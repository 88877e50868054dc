"""What torch.compile is given, against the same uncompiled, in processes of their own: all that compilers import makes
every test that runs after them slower."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from benchmarks import stacked
from benchmarks.networks import Pooling
from benchmarks.recipes import RECIPES, build_resnet9

from giveaway.attacks.shadow_store import balanced_membership
from tests import forked


@pytest.mark.slow
@pytest.mark.parametrize("check", ["pooling", "steps"])
def test_compiled_is_the_same(check):
    done = forked.python("-c", f"from tests import test_compiled; test_compiled.{check}()")
    assert done.returncode == 0, done.stderr


def pooling():
    """Equal numbers are common here: the gradient goes to the first of them."""
    compiled = torch.compile(Pooling(), backend="aot_eager", dynamic=False)
    layouts = (torch.contiguous_format, torch.channels_last)
    for height, width, layout in product((2, 7, 8), (3, 6), layouts):
        torch._dynamo.reset()
        x = torch.randint(-2, 3, (3, 5, height, width)).double().contiguous(memory_format=layout).requires_grad_()
        found, expected = compiled(x), torch.nn.functional.max_pool2d(x, 2)
        slopes = torch.randn_like(expected)
        assert torch.equal(found, expected)
        assert torch.equal(*(torch.autograd.grad(out, x, slopes)[0] for out in (found, expected)))


def steps():
    """Learning rates, batches, augmentation and losses, in double precision, of two networks side by side."""
    rng, begun = np.random.default_rng(0), stacked._Trainer.__init__
    pictures, labels = rng.normal(size=(36, 3, 8, 8)), rng.integers(0, 3, 36)
    training = replace(RECIPES["resnet9"].training, epochs=3, batch_size=6, precision="float32")

    def small():
        return build_resnet9((3, 8, 8), 3, channels=(4, 4, 8, 8)).double()

    def trained():
        given, seen = (small, pictures, labels, balanced_membership(2, 36, seed=0), training), []
        options = {"seeds": [5, 6], "models_at_once": 2, "stack": False}
        found = dict(stacked.train_stacked(*given, **options, on_epoch=lambda *told: seen.append(told[2])))
        return [*seen, *found.values()]

    def compiled(self, *args):
        begun(self, *args)
        self.compile("aot_eager")

    expected = trained()
    stacked._Trainer.__init__ = compiled
    for found, own in zip(trained(), expected, strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-9, atol=1e-9)
