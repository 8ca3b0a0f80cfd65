r"""Whether the gradients of a step are what the tracker takes them for, from how often each `.grad` was written to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

ONE_PART = "only one part: no two gradients to compare"
NO_GRADIENT = "no gradient"
UNHOOKED = "a parameter began to train in the middle of a step"
TWO_BACKWARDS = "two backward passes reached one parameter within one part"
REDUCED_TWICE = "gradients were reduced more than once: accumulate under no_sync"
CHANGED_BETWEEN = "gradients were cleared or changed between two parts of one step"
STEPPED_BETWEEN = "weights changed between two parts of one step"
NOT_CLEARED = "the gradients of the step before were still there: zero_grad() is missing"

Version = tuple[int, int] | None


class Guard:
    """Follows one step. `problem` is why it can't be used, or ''; `touched`, whether a part is open.

    A gradient left over from an earlier step, of a parameter that nothing reached in this one, is none of its own.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int, sharded: bool) -> None:
        self._parameters, self._ranks, self._sharded = parameters, ranks, sharded
        self.buckets = False  # whether parameters are seen in DDP's hook, after `.grad` was added to
        self.start()

    def start(self) -> None:
        """A step begins."""
        self.problem = ""
        self.touched = False
        self._parts = 0
        self._weights = 0  # how often they had been written to when the last part was closed
        self._last = [-1] * len(self._parameters)  # part in which each parameter was seen
        self._left = self.versions()
        self._first: list[Version] = [None] * len(self._parameters)
        self._before = self._first
        self._closed: list[Version] = []

    def versions(self) -> list[Version]:
        """By parameter which tensor its gradient is, and how often it was written to."""
        return [_version(p) for p in self._parameters]

    def begin(self) -> None:
        """A backward pass begins and has added to nothing yet."""
        self._before = self.versions()
        self.touched = True
        if not self._parts:
            self._first = self._before

    def see(self, index: int) -> None:
        """A backward pass is about to add to a parameter's gradient (or has, where `buckets`)."""
        if self._last[index] == self._parts:
            self.problem = REDUCED_TWICE if self.buckets else TWO_BACKWARDS
        elif not self.buckets:
            self._compare(index, _version(self._parameters[index]))
        self._last[index] = self._parts
        self.touched = True

    def seen(self, indices: Iterable[int]) -> None:
        """The backward pass since `begin` has added to the gradients of these parameters."""
        for index in indices:
            self._compare(index, self._before[index])
            self._last[index] = self._parts

    def close(self) -> None:
        """A part ends."""
        weights = 0 if self._sharded else sum(p._version for p in self._parameters)
        if self._closed and weights != self._weights:
            self.problem = STEPPED_BETWEEN
        self._weights = weights
        self._closed = self.versions()
        self.touched = False
        self._parts += not self.buckets

    def unchanged(self, versions: list[Version]) -> bool:
        """Whether the gradients are as they were when the last part was closed."""
        return not self._closed or versions == self._closed

    def used(self, versions: Sequence[Version], hooked: Sequence[bool]) -> list[bool]:
        """By parameter whether it has a gradient of this step; sets `problem` where one isn't followed."""
        found = []
        for now, at, first, left, follow in zip(versions, self._last, self._first, self._left, hooked, strict=True):
            if now is not None and not follow and now != left:
                self.problem = UNHOOKED
            # Other ranks may have reached what this one didn't: then its gradient has been written to.
            found.append(now is not None and (at >= 0 or (self._ranks > 1 and now != first)))
        return found

    def _compare(self, index: int, before: Version) -> None:
        if self._parts and before != self._closed[index]:
            self.problem = CHANGED_BETWEEN
        elif not self._parts and before is not None and before == self._left[index]:
            self.problem = NOT_CLEARED


def _version(parameter: nn.Parameter) -> Version:
    """Which tensor the gradient is, and how often it has been written to."""
    return None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)
