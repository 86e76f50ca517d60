"""One round under one objective, in every form that a solver may need."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.groups import Groups, idle_counts
from dovetail.formulations.candidates.kinds import Kinds
from dovetail.formulations.candidates.listing import list_groups
from dovetail.formulations.memory import require_room
from dovetail.formulations.objectives import Objective, job_values
from dovetail.formulations.pair_tables import PairTables, pair_tables
from dovetail.formulations.programs.integer_program import RoundProgram, build
from dovetail.formulations.programs.pair_graph import PairGraph, require_matchings
from dovetail.formulations.programs.scores import fitting, worthwhile
from dovetail.formulations.rounds import Round
from dovetail.formulations.slowdowns import KnownSlowdowns
from dovetail.formulations.values import JobValues
from dovetail.instances.instance import Instance

_LISTING = 0.3
"""The part of the remaining time that listing the groups may take: solving takes longer."""

_APART_BYTES = 200
"""Memory of matchings for each member of the groups of single jobs."""


class Problem:
    """A round under an objective; each form is built on first use.

    Parameters
    ----------
    compiled : Round
        The round.
    values : JobValues
        The objective.
    budget : Budget
        The budget of the answer. Listing the groups takes at most a part of what is left; groups
        may then be missing (``Groups.complete``).
    at_paces : bool
        List gangs that share some of their GPUs at only a few paces (``paces``).
    """

    def __init__(
        self,
        compiled: Round,
        values: JobValues,
        budget: Budget = UNLIMITED,
        at_paces: bool = False,
    ) -> None:
        self.round = compiled
        self._at_paces = at_paces
        self.values = values
        self._budget = budget

    @classmethod
    def of(
        cls,
        instance: Instance,
        objective: Objective,
        book: KnownSlowdowns | None = None,
        budget: Budget = UNLIMITED,
    ) -> Problem:
        """Return the problem of an instance.

        Parameters
        ----------
        instance : Instance
            The instance.
        objective : str or callable
            Name of the objective, or a subclass of ``JobValues``.
        book : KnownSlowdowns, optional
            The combinations of an earlier round, see ``Round``.
        budget : Budget
            The budget of the answer.

        Raises
        ------
        InputError
            When the instance lacks a field that the objective needs.
        """
        compiled = Round.of(instance, book)
        return cls(compiled, job_values(compiled, objective), budget)

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of jobs in the candidate groups."""
        return Kinds.of(self.round, self.values)

    @cached_property
    def apart(self) -> Problem:
        """The same problem with groups of individual jobs."""
        return self if self.kinds.alone else _Apart(self)

    def merged(self, counts: Ints) -> Ints:
        """Return how often each group is taken, given the counts of the groups of ``apart``."""
        if self.kinds.alone:
            return counts
        return np.bincount(self._parted[1], counts, len(self.groups)).astype(np.int64)

    @cached_property
    def _parted(self) -> tuple[Groups, Ints]:
        return self.groups.apart()

    @cached_property
    def groups(self) -> Groups:
        """The candidate groups, without those that no best plan needs or that have no room."""
        budget = self._budget.part(_LISTING)
        groups = list_groups(self.round, self.values, budget, self._at_paces, self.kinds)
        return fitting(worthwhile(groups) if self.values.relative else groups)

    @cached_property
    def tables(self) -> PairTables | None:
        """The tables of a round of pairs, or None if its groups have to be listed."""
        return pair_tables(self.round, self.values)

    @cached_property
    def program(self) -> RoundProgram:
        """The integer program."""
        return build(self.groups, self.values)

    @cached_property
    def graph(self) -> PairGraph:
        """The graph whose matchings are the plans.

        Raises
        ------
        UnsupportedError
            If there is no such graph, with the reason.
        """
        return PairGraph(self.groups, self.values)

    @property
    def idle_counts(self) -> Ints:
        """The choice in which running jobs stay and no job starts."""
        return idle_counts(self.groups)


class _Apart(Problem):
    """A problem with groups of individual jobs."""

    def __init__(self, merged: Problem) -> None:
        super().__init__(merged.round, merged.values, merged._budget)
        self._merged = merged

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds.apart(len(self.round))

    @cached_property
    def groups(self) -> Groups:
        needed = _APART_BYTES * self._merged.groups.members_apart
        require_room(needed, "the groups of single jobs")
        return self._merged._parted[0]

    @cached_property
    def graph(self) -> PairGraph:
        require_matchings(self._merged.groups)
        return super().graph

    @property
    def tables(self) -> PairTables | None:
        return self._merged.tables
