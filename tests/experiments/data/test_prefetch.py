import threading

import torch

from experiments.data.prefetch import Prefetch


def make(size: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    return torch.rand(size, 3, generator=generator), torch.randint(10, (size,), generator=generator)


def test_the_same_batches_and_generator_as_without_whatever_happens_in_between():
    plain, ahead, probe = (torch.Generator().manual_seed(s) for s in (1, 1, 2))
    prefetch = Prefetch(make)
    for turn in range(12):
        size = 5 if turn < 6 else 8
        wanted, got = make(size, plain), prefetch(size, ahead)
        assert all(a.equal(b) for a, b in zip(wanted, got, strict=True))
        assert plain.get_state().equal(ahead.get_state())
        if turn % 3 == 0:
            prefetch(4, probe)
        if turn == 8:
            for generator in (plain, ahead):
                torch.rand(1, generator=generator)
        if turn == 10:
            state = plain.get_state()
    for generator in (plain, ahead):
        generator.set_state(state)
    assert make(8, plain)[0].equal(prefetch(8, ahead)[0])


def test_the_next_batch_is_made_in_another_thread_once():
    makers = []

    def noted(size: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        makers.append(threading.get_ident())
        return make(size, generator)

    prefetch, generator = Prefetch(noted), torch.Generator().manual_seed(0)
    for _ in range(5):
        prefetch(4, generator)
    prefetch.thread.shutdown()
    assert makers[0] == threading.get_ident() and makers[1] != threading.get_ident()
    assert len(makers) == 6
