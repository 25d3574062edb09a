"""When a scheduled pipeline runs: a cron expression or an interval, in a time zone. Checked here, without Prefect."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flows.plan import BadInput

ANCHOR = datetime.datetime(2020, 1, 1)  # intervals count from here, so that a restart does not shift them


@dataclass(frozen=True, slots=True)
class When:
    """A cron expression or an interval in seconds, in a time zone."""

    cron: str | None
    interval: float | None
    timezone: str

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.interval is None):
            raise BadInput("give exactly one of --cron and --interval")
        if self.interval is not None and self.interval < 1:
            raise BadInput(f"--interval {self.interval} is too short; expected at least 1 second")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise BadInput(f"time zone '{self.timezone}' is unknown; expected an IANA name such as Europe/Berlin") from None
