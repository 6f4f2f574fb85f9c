"""The token lengths that the runs of a loader learn, with lengths="learn"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudload.config.choices import LEARN
from cloudload.session.current_run import CurrentRun
from cloudload.session.membership import Membership

if TYPE_CHECKING:
    from cloudload.count.learn import LengthsLearner


class Learning:
    """Opens the learner of the current run once, and closes it."""

    def __init__(self) -> None:
        self._learner: LengthsLearner | None = None

    def open(self, run: CurrentRun, member: Membership) -> LengthsLearner | None:
        """Return the learner, or None if the run has lengths, or `lengths` is not "learn"."""
        if member.delivery.lengths != LEARN:
            return None
        from cloudload.count.learn import forget_learned, open_learner

        world = member.world
        if run.has_lengths:
            forget_learned(run.recipe, run.cache_root)
        elif self._learner is None:
            self._learner = open_learner(
                run.recipe,
                run.cache_root,
                member.delivery.retry,
                has_other_nodes=len(set(world.hosts)) > 1,
                is_publisher=world.rank % world.ranks_per_node == 0,
            )
            if self._learner is not None:
                self._learner.start()
        return self._learner

    def close(self) -> None:
        """Publish the lengths learned so far, and close the learner."""
        if self._learner is not None:
            self._learner.close()
            self._learner = None
