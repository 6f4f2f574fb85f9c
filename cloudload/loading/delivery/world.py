"""The environment of a loader: its world, the exchange between ranks, and the number of workers.

    Environment                     torch.distributed and worker processes
    LoneEnvironment, for tools      one rank, without the others
    ThreadEnvironment, for tests    ranks in threads of one process, workers inline

    Membership ── world     rank, size, ranks per node
               ── delivery  the options, with the rank and the batch size of this world
               ── exchange  the connection to the other ranks, opened by the first iteration

A loader uses the environment that is current when the loader is created. `set_world` replaces its
membership.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from cloudload.config import DeliveryConfig, checks
from cloudload.loading.delivery.exchange import DistributedExchange, Exchange
from cloudload.order import StepShape, World
from cloudload.system import divisors, machine

_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables in which launchers other than torchrun put the number of processes."""
_FAST_WORKERS, _SLOW_WORKERS = 1, 4


class Environment:
    """Connects a loader to the processes of a job: the other ranks, and this rank's workers."""

    saves_states: ClassVar[bool] = True
    """Whether a loader that cannot save a state warns of it."""

    def find_world(self, delivery: DeliveryConfig) -> World:
        """Find the current world, which may change when torch.distributed is initialized.

        Raises `ValueError` as the function `find_world` does.
        """
        return find_world(delivery.dp_rank, delivery.dp_world_size)

    def is_first_process(self, delivery: DeliveryConfig) -> bool:
        """Whether this process logs on behalf of all processes.

        Raises `ValueError` as the function `is_first_process` does.
        """
        return is_first_process(delivery.dp_rank)

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        """Open the exchange with the other ranks. All processes must call it together.

        The exchange covers only this rank if there are no other ranks, or if torch.distributed is
        not initialized.
        """
        import torch.distributed as dist

        # with a mesh, all processes compare their configs, even if they share a single rank.
        # Without a mesh, dp_world_size=1 does not imply that the other processes have a loader
        has_others = delivery.has_mesh or self.find_world(delivery).size > 1
        is_ready = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if has_others and is_ready:
            return DistributedExchange(delivery.exchange_timeout_s)
        return Exchange()

    def has_worker_processes(self, delivery: DeliveryConfig) -> bool:
        """Whether processes make the rows of this rank, not this process."""
        return delivery.has_worker_processes


class LoneEnvironment(Environment):
    """The environment of a tool, which reads the rows of one rank, and saves no state."""

    saves_states = False

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        return Exchange()


_current: ContextVar[Environment | None] = ContextVar("cloudload_environment", default=None)


def current_environment() -> Environment:
    """Return the environment that a loader created now would use."""
    return _current.get() or Environment()


@contextlib.contextmanager
def use_environment(environment: Environment) -> Iterator[None]:
    """Make an environment current within a `with` block."""
    token = _current.set(environment)
    try:
        yield
    finally:
        _current.reset(token)


class Membership:
    """One process's rank, batch size, and connection. `ranks_per_node` is None for the default."""

    def __init__(
        self, environment: Environment, delivery: DeliveryConfig, ranks_per_node: int | None = None
    ) -> None:
        self.environment, self.delivery = environment, delivery
        self._ranks_per_node = ranks_per_node
        self.is_first = environment.is_first_process(delivery)
        """Whether this process logs on behalf of all processes."""
        self._exchange: Exchange | None = None

    @property
    def world(self) -> World:
        """The current world, which may change when torch.distributed is initialized."""
        world = self.environment.find_world(self.delivery)
        if self._ranks_per_node is None:
            return world
        return replace(world, ranks_per_node=min(self._ranks_per_node, world.size))

    @property
    def global_batch(self) -> int:
        """Number of rows per step, across all ranks."""
        return self.delivery.global_batch(self.world.size)

    @property
    def shape(self) -> StepShape:
        """The rows of a step. Raises `ValueError` if a step has fewer rows than ranks."""
        return StepShape.of(self.delivery, self.world.size)

    def moved(
        self, rank: int, size: int, batch_size: int | None, ranks_per_node: int | None
    ) -> Membership:
        """Return the membership in another world. Raises `ValueError` for an invalid number."""
        if batch_size is None:
            batch_size = self.delivery.batch_size
        elif self.delivery.batch_size is None:
            raise ValueError(
                f"batch_size is {batch_size}, but the loader has "
                f"global_batch_size={self.delivery.global_batch_size}, which stays the same in "
                "every world. Omit batch_size"
            )
        rank, size = checks.as_integer("rank", rank), checks.as_integer("size", size)
        delivery = replace(self.delivery, dp_rank=rank, dp_world_size=size, batch_size=batch_size)
        if ranks_per_node is not None:
            ranks_per_node = checks.as_integer("ranks_per_node", ranks_per_node, 1)
        World(rank, size, 1)
        return Membership(self.environment, delivery, ranks_per_node)

    def connect(self) -> Exchange:
        """Return the connection. The first call opens it, and all ranks must make it together."""
        if self._exchange is None:
            self._exchange = self.environment.open_exchange(self.delivery)
        return self._exchange

    def disconnect(self) -> None:
        """Close the connection. The next call of `connect` opens a new one."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


# ---------------------------------------------------------------- ranks and workers


def find_world(dp_rank: int | None = None, dp_world_size: int | None = None) -> World:
    """Find the world from the arguments, or else from torch.distributed or the environment.

    The environment variables are `RANK` and `WORLD_SIZE`. Without them, the world is a single rank.
    `LOCAL_WORLD_SIZE` is the number of processes per node. By default, all processes are on one
    node. Raises `ValueError` for an invalid variable or rank.
    """
    rank, size = _find_process()
    ranks_per_node = max(1, min(size, _environment_number("LOCAL_WORLD_SIZE", size)))
    if dp_rank is None or dp_world_size is None:
        return World(rank, size, ranks_per_node)
    # The number of ranks per node is a guess, because a rank may span nodes, or all ranks may be on
    # one node. It affects only which node reads which shards, never the content of a row. All
    # processes must make the same guess, so it uses only values that are the same on all of them.
    num_nodes = max(1, size // ranks_per_node)
    return World(
        dp_rank, dp_world_size, 1 if dp_world_size % num_nodes else dp_world_size // num_nodes
    )


def explain_lone_rank() -> str | None:
    """Return a warning if a launcher started several processes, but the world size of each is 1.

    For a process whose world has a single rank, which was not given.
    """
    import torch.distributed as dist

    if (dist.is_available() and dist.is_initialized()) or os.environ.get("WORLD_SIZE"):
        return None
    name = next(filter(os.environ.get, _TASK_COUNTS), "")
    number = os.environ.get(name, "")
    if not number.isdecimal() or int(number) < 2:
        return None
    return (
        f"{name} is {number}, but the world size is 1, so each process that reads this data gets "
        "all of it. If they train one model, call init_process_group before iterating, set RANK "
        "and WORLD_SIZE, or pass dp_rank and dp_world_size. Otherwise, set WORLD_SIZE to 1"
    )


def is_first_process(dp_rank: int | None) -> bool:
    """Whether this process logs on behalf of all processes.

    This is rank 0 of the job if the job has several ranks. Otherwise it is data-parallel rank 0,
    which several processes may share, for instance with tensor parallelism. Raises `ValueError` for
    an invalid environment variable.
    """
    rank, size = _find_process()
    return not (rank if size > 1 else dp_rank)


def _find_process() -> tuple[int, int]:
    """Return the rank of this process in the job, and the number of processes in the job."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)


def ranks_of(
    device_mesh: Any, dp_rank: int | None, dp_world_size: int | None
) -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks that a loader's arguments specify, or None for both.

    Raises `ValueError` if both a mesh and a rank or world size are given.
    """
    if device_mesh is None:
        return dp_rank, dp_world_size
    if dp_rank is not None or dp_world_size is not None:
        raise ValueError(
            f"device_mesh is set, but dp_rank is {dp_rank} and dp_world_size is {dp_world_size}. "
            "Pass either device_mesh, or dp_rank and dp_world_size"
        )
    return rank_in_mesh(device_mesh)


def rank_in_mesh(device_mesh: Any) -> tuple[int, int]:
    """Return (data-parallel rank, number of ranks) of this process in a `DeviceMesh`.

    All dimensions of the mesh must be data-parallel. The last one varies fastest. Raises
    `ValueError` if `device_mesh` is not a mesh, or if this process is not in it.
    """
    if not hasattr(device_mesh, "get_coordinate"):
        raise ValueError(
            f"device_mesh is {device_mesh!r}. Pass a torch DeviceMesh of only data-parallel "
            "dimensions, such as mesh['dp'], or dp_rank and dp_world_size"
        )
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            f"this process is not in the device_mesh {device_mesh}. Include all processes in the "
            "mesh, and create a loader in each"
        )
    return int(np.ravel_multi_index(coordinate, device_mesh.shape)), device_mesh.size()


def _environment_number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise ValueError(f"the environment variable {name} is {text!r}. Set it to a whole number")
    return int(text) if text else default


def count_cores() -> tuple[int, int]:
    """Count the cores that this process may use and the cores of the node."""
    return machine.usable_cores(), os.cpu_count() or 1


def default_num_workers(num_ranks: int, own_cores: int, node_cores: int, *, is_fast: bool) -> int:
    """Return the default number of workers per rank, which affects only the speed.

    `is_fast` means that there is no transform, and that the data is token IDs or is encoded by
    fastokens. One worker is then enough, because it produces tens of millions of tokens per second.
    Otherwise, the default is 4, or fewer if there are fewer cores. The other arguments are those of
    `explain_few_cores`.
    """
    wanted = _FAST_WORKERS if is_fast else _SLOW_WORKERS
    return min(wanted, _most_workers(num_ranks, own_cores, node_cores))


def _most_workers(num_ranks: int, own_cores: int, node_cores: int) -> int:
    return max(1, min(own_cores, node_cores // num_ranks))


def explain_few_cores(
    num_workers: int,
    num_ranks: int,
    own_cores: int,
    node_cores: int,
    *,
    asked: int | None = None,
) -> str | None:
    """Return a warning if a node has more workers than its cores can run, otherwise None.

    Also returns None if `num_workers` cannot be reduced.
    Each of `num_ranks` ranks on the node has `num_workers` workers. This process may use
    `own_cores` of the `node_cores` cores. `asked` is the option's value if
    there are too few lanes for it.
    """
    most = _most_workers(num_ranks, own_cores, node_cores)
    if num_workers <= most:
        return None
    ranks = f" in each of {num_ranks} ranks on a node" if num_ranks > 1 else ""
    used = "" if asked in (None, num_workers) else f" ({num_workers} are used, one for each lane)"
    cores = f"{own_cores} core{'s' * (own_cores != 1)}"
    return (
        f"num_workers is {asked or num_workers}{used}{ranks}, but this process may use {cores}, "
        f"and the node has {node_cores}. The workers then slow down each other and the training "
        f"process. Use "
        f"num_workers={most}"
    )


def check_world(num_lanes: int, world_size: int, *, has_lengths: bool) -> None:
    """Raise `ValueError` if the ranks cannot share the lanes.

    With `has_lengths`, any world size works, because token lengths locate the rows.
    """
    if num_lanes % world_size == 0 or has_lengths:
        return
    sizes = divisors(num_lanes)
    index = bisect(sizes, world_size)
    all_sizes = ", ".join(map(str, sizes))
    near = " or ".join(map(str, sizes[index - 1 : index + 1]))
    other_lanes = world_size * max(1, round(num_lanes / world_size))
    raise ValueError(
        f"{world_size} ranks cannot share {num_lanes} lanes evenly. Use {near} ranks, start a new "
        f"run with num_lanes={other_lanes}, or run cloudload count, because token lengths of all "
        f"shards, also of appended ones, allow any number of ranks. World sizes that "
        f"divide the lanes evenly: {all_sizes}"
    )
