"""Quotas: what a tenant may store and send, with a reserve that no tenant can eat.

Threat: one tenant that fills the disk or the line for all. Each tenant has bytes stored and bytes per second; the
store keeps a reserve free beyond all quotas (`carriers.log.limits.reserve_bytes`), so that the ledger goes on when
tenants are at their limits. A tenant over its rate is told when to come back, one over its store is refused until
retention frees some. Time is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.errors import Refused, Unavailable
from tallystick.runtime.buckets import Buckets, Rate

TENANTS_MAX = 65_536  # whose rate is remembered


@dataclass(frozen=True)
class Quota:
    bytes_stored_max: int = 64 << 30  # a tenant's share of one node's disk
    bytes_per_s: float = 64 << 20  # what one disk syncs in passing
    burst_s: float = 10.0  # how many seconds' worth may come at once after a silence


class Quotas:
    def __init__(self, default: Quota, by_tenant: dict[bytes, Quota] | None = None) -> None:
        self._default = default
        self._by_tenant = dict(by_tenant or {})
        self._buckets: Buckets[bytes] = Buckets(TENANTS_MAX)

    def of(self, tenant: bytes) -> Quota:
        return self._by_tenant.get(tenant, self._default)

    def charge(self, tenant: bytes, n_bytes: int, stored: int, now: float) -> None:
        """Take `n_bytes` from the tenant's allowance; `Unavailable` (come back later) or `Refused` (full)."""
        quota = self.of(tenant)
        if stored + n_bytes > quota.bytes_stored_max:
            raise Refused(
                f"the tenant stores {stored} bytes of {quota.bytes_stored_max}",
                reason="quota",
                hint="shorten retention, or ask the operator for a larger quota",
            )
        rate = Rate(quota.bytes_per_s, quota.bytes_per_s * quota.burst_s)
        # A parcel larger than the burst would never pass: let it through when the bucket is full.
        wait_s = self._buckets.charge(tenant, rate, n_bytes, now, needed=min(n_bytes, rate.most))
        if wait_s:
            raise Unavailable(f"the tenant sends more than {quota.bytes_per_s:g} bytes/s", retry_after_s=wait_s)
