"""A training step as one CUDA graph: launched as a whole, so that small models are not held up by the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WARM_UPS = 3


def captured(
    step: Callable[[], None], state: Sequence[torch.Tensor], made: Callable[[], Sequence[torch.Tensor]]
) -> Callable[[], None]:
    """`step` recorded once; calling the result replays it on the same memory.

    Libraries choose their kernels in the first steps, which therefore run for real: afterwards the tensors of `state`
    are as they were, and those that the steps themselves made (`made()`, an optimizer's) are zero.
    """
    before = [tensor.detach().clone() for tensor in state]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, earlier in zip(state, before, strict=True):
            tensor.copy_(earlier)
        for tensor in made():
            tensor.zero_()
    return graph.replay


def side_by_side(steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Steps that touch different memory, each on a stream of its own."""
    streams = [torch.cuda.Stream() for _ in steps]

    def together() -> None:
        here = torch.cuda.current_stream()
        for step, stream in zip(steps, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                step()
        for stream in streams:
            here.wait_stream(stream)

    return together
