"""A run that hangs ends: by an exception where Python still runs, else with its process."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 30.0


class OverTimeError(BaseException):
    """Not an `Exception`, so that nothing between the run and its worker takes it for its own business."""


@contextmanager
def time_limit(seconds: float | None, on_hang: Callable[[str], None]) -> Iterator[None]:
    """`OverTimeError` in the body after `seconds` (None: never). Where the body is stuck outside Python and
    doesn't feel it for GRACE seconds more, `on_hang(message)` and the end of the process. In the main thread only.
    """
    if seconds is None:
        yield
        return
    message = f"over its {seconds:g} seconds (cluster.run_seconds); a rerun goes on from its last checkpoint"

    def ring(number: int, frame: FrameType | None) -> None:
        raise OverTimeError(message)

    def give_up() -> None:
        on_hang(message)
        os._exit(1)

    before = signal.signal(signal.SIGALRM, ring)
    watchdog = threading.Timer(seconds + GRACE, give_up)
    watchdog.daemon = True
    watchdog.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()
