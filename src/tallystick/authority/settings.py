"""The numbers that an authority works by, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

_DAY_S = 86_400


@dataclass(frozen=True)
class AuthoritySettings:
    """What an operator may choose; seconds where the name ends in `_s`."""

    epoch_s: int = _DAY_S  # one key a day: a stolen private half opens a day
    revoke_s: int = 10  # from a revocation's block until nothing is sealed for the revoked: a long poll and slack
    late_epochs: int = 1  # epochs that ended by schedule and are still taken: parcels on their way at midnight
    epochs_ahead: int = 14  # public halves handed out early: a car is offline for a week, seldom for two
    permit_s: int = 30 * _DAY_S  # renewed monthly; revocation does not wait for it
    certificate_s: int = 3 * 365 * _DAY_S  # the service interval of a vehicle's key store
    invite_s: int = 7 * _DAY_S  # a person answers a mail within a week
    erasure_period_s: int = 30 * _DAY_S  # one pair per publisher and month: 10,000 vehicles make 120,000 a year
    erasure_ahead: int = 1  # periods drawn early, for the same offline week
    attribute_epoch_s: int = _DAY_S  # as a topic's: beyond withdrawal, a stolen attribute key opens a day
    attribute_burst: int = 12  # early attribute epochs that one tenant causes at once: withdrawals by hand, one by one
    attribute_gather_s: int = 300  # and one more per so long: a hundred thousand keys take the authority two minutes
    label_epochs_back: int = 1  # whose labels a permit has: the newest of what lies in the log,
    label_epochs_ahead: int = 6  # and a week of daily epochs; 256 labels hold 32 in each
    label_false_positives_max: float = 0.1  # share of what an interest's labels cover that it does not mean
    mesh_epoch_s: int = _DAY_S  # the same at all nodes of the mesh; a revoked publisher is heard for at most this long
    mesh_notice_s: int = 3_600  # before the next epoch begins its mesh keys stay: all members look within this time
    head_age_max_s: int = 300  # how old the newest checkpoint may be before the authority stops serving
    connections_max: int = 1_024
    address_connections_max: int = 256  # of these; clients behind one proxy or NAT share them


@dataclass(frozen=True)
class AuthorityLimits:
    """What a caller may ask for; beyond it the answer is a refusal, never more work."""

    request_bytes_max: int = 256 * 1024  # the largest is a schema
    name_characters_max: int = 200  # of topics, principals and tenants
    schema_bytes_max: int = 128 * 1024  # some thousands of columns
    schemas_max: int = 1_000  # versions of one topic; each grant lists them all
    topics_max: int = 10_000  # of one tenant: expanding a pattern visits them all
    drafts_max: int = 64  # topics that one principal has named but not yet made
    patterns_max: int = 1_000  # of one tenant: every new topic is compared with them all
    matches_max: int = 1_000  # topics that one pattern may touch at once: each is looked up under proof
    permits_max: int = 1_024  # live ones of one principal on one topic: an hourly container for a month
    invites_max: int = 10_000  # open ones of one tenant
    periods_max: int = 1_024  # erased by one request
    names_max: int = 5_000  # principals on one page of names, some 200 kB
    wait_ms_max: int = 30_000  # of a long poll: below the idle timeout of common proxies
    requests_per_s: float = 10.0  # of one principal: a long poll per topic and some permits
    requests_burst: int = 500  # of one principal at once: a service that starts with hundreds of topics
    requests_max: int = 512  # of one principal under way: a long poll for each of hundreds of topics
    principals_max: int = 100_000  # whose rate is remembered, some 20 MB
    erasure_keys_max: int = 20_000  # in one answer, some 2 MB; the next poll brings the rest
    space_bytes_max: int = 128 * 1024  # of one tenant's attribute space: a thousand attributes
    attributes_max: int = 256  # of one tenant for one principal; a key has 8,192 traits at most
    foreign_traits_max: int = 256  # of a principal's key, for one tenant that is not its own: 30 of them fill the rest
    attribute_epochs_max: int = 1_024  # in one key, some 50 kB and 0.2 s; the next request brings the rest
    attribute_parts_per_s: float = 200.0  # made for one principal, 80 us each: a fiftieth of a core
    attribute_parts_burst: int = 20_000  # at once: the largest key twice, with all its epochs
    policy_keys_max: int = 10_000  # in one answer, some 10 MB; the next poll brings the rest
    blocks_max: int = 256  # fetched at once while following
    backup_part_bytes: int = 32 << 20  # a client takes answers of 64 MiB
