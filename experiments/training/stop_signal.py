"""Word that this process must go, kept back until the run has saved itself.

Before a job's time is over, or when it is preempted, submitit gets a signal; its handler puts the job back into the
queue and ends the process at once, in the midst of a step.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Leaving(BaseException):
    """Raised by a run that has saved itself. Not an `Exception`, so that nothing takes it for a failure."""


@contextmanager
def kept_back(number: int) -> Iterator[Callable[[], bool]]:
    """In the body, the signal `number` makes the given function true instead of calling its handler, which is called
    when the body has ended, by itself or by `Leaving`. Where the signal has no handler, nothing changes.
    """
    handler = signal.getsignal(number)
    if not callable(handler):
        yield lambda: False
        return
    given = []
    signal.signal(number, lambda *what: given.append(what))
    try:
        yield lambda: bool(given)
    except Leaving:
        pass
    finally:
        signal.signal(number, handler)
    if given:
        handler(*given[0])
