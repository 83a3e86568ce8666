"""The kinds of entries, by number. Numbers are for ever: a kind that falls out of use keeps its own."""

from __future__ import annotations

from enum import IntEnum

from tallystick.trust.promise import ANCHOR_ENTRY, NOTARISE_ENTRY


class EntryKind(IntEnum):
    ENROL = 1
    REVOKE = 2
    REPLACE = 3
    TENANT = 4
    TRUST = 5

    TOPIC = 10
    SCHEMA = 11
    ASSIGN = 12
    CLOSE_TOPIC = 13

    ANNOUNCE_EPOCH = 20
    END_EPOCH = 21

    GRANT = 25
    WITHDRAW = 26

    ISSUE_PERMIT = 30
    UNDO_PERMIT = 31
    REVOKE_PERMIT = 32

    OPERATION = 35

    ANCHOR = ANCHOR_ENTRY  # 40
    RETIRE = 41
    BROKEN_PROMISE = 42
    NOTARISE = NOTARISE_ENTRY  # 43

    GRANT_ATTRIBUTE = 44
    WITHDRAW_ATTRIBUTE = 45
    TOPIC_POLICY = 46
    ATTRIBUTE_EPOCH = 47

    GROUP = 50
    JOIN = 51
    LEAVE = 52
    COMMIT_OFFSET = 53
    RESET_OFFSET = 54

    LIFT = 60
    EQUIVOCATION = 65
    WRITE = 70
    ERASE = 75

    SET = 80
    ACTIVATE = 81
