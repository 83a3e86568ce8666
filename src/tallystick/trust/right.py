"""Rights on a topic (BPS Table 3), each of them separate. The ledger holds them by these numbers."""

from __future__ import annotations

from enum import IntFlag


class Right(IntFlag):
    READ = 1
    WRITE = 2
    DESCRIBE = 4
    DELETE = 8
