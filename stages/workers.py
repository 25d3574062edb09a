"""Who does the work of the data stages: the settings that prepare and tokenize share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data.pool import Pool
from stages.config import Section


class Workers(Section):
    """Processes that share a stage's work. Moves the time only, never a byte of the output."""

    workers: int = Field(ge=1)
    """Processes; the result does not depend on it."""
    executor: Literal["processes", "dask"]
    """Where the work is done: on processes of this machine, or on Dask."""
    dask_address: str | None
    """Scheduler of a Dask cluster that runs already, which must see this folder; null starts one of `workers` processes here."""

    def pool(self) -> Pool:
        """Where tasks run."""
        return Pool(self.workers, self.executor, self.dask_address)
