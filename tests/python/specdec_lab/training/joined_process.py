"""One of several processes that join, make what a training makes, and part."""

import weakref

import torch
import torch.distributed as dist

from specdec_lab.training.distributed import joined


def main() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with joined(torch.device("cpu")) as ranks:
        group = weakref.ref(dist.group.WORLD)
        optimizer = torch.optim.AdamW([weight])
        torch.autograd.backward(weight.sum())
        ranks.sum_gradients([weight])
        optimizer.step()
    print(f"the group of {ranks.size} is {'gone' if group() is None else 'there'}", flush=True)


if __name__ == "__main__":
    main()
