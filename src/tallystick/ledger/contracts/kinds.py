"""The kinds of entries, by number. Numbers are for ever: a kind that falls out of use keeps its own."""

from __future__ import annotations

from enum import IntEnum

from tallystick.trust.promise import ANCHOR_ENTRY, NOTARISE_ENTRY


class EntryKind(IntEnum):
    ENROL, REVOKE, REPLACE, TENANT, TRUST = 1, 2, 3, 4, 5
    TOPIC, SCHEMA, ASSIGN, CLOSE_TOPIC = 10, 11, 12, 13
    ANNOUNCE_EPOCH, END_EPOCH = 20, 21
    GRANT, WITHDRAW = 25, 26
    ISSUE_PERMIT, UNDO_PERMIT, REVOKE_PERMIT = 30, 31, 32
    OPERATION = 35
    ANCHOR = ANCHOR_ENTRY  # 40
    RETIRE, BROKEN_PROMISE = 41, 42
    NOTARISE = NOTARISE_ENTRY  # 43
    GRANT_ATTRIBUTE, WITHDRAW_ATTRIBUTE, TOPIC_POLICY, ATTRIBUTE_EPOCH = 44, 45, 46, 47
    GROUP, JOIN, LEAVE, COMMIT_OFFSET, RESET_OFFSET = 50, 51, 52, 53, 54
    LIFT = 60
    EQUIVOCATION = 65
    WRITE = 70
    ERASE = 75
    SET, ACTIVATE = 80, 81
