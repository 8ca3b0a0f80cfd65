r"""DDP's communication hook as the place to measure: ranks are the parts, for one norm a parameter a step."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

CommHook = Callable[[Any, dist.GradBucket], Future[Tensor]]


def mean_over_ranks(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """What DDP does without a hook, to the bit: multiply by 1/R, then add up."""
    buffer = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def measured(see: Callable[[Tensor, Tensor], None], reduce: CommHook) -> CommHook:
    """A hook that shows each parameter with its local gradient to `see`, then reduces as `reduce` does."""

    def run(state: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            see(parameter, gradient)
        return reduce(state, bucket)

    return run
