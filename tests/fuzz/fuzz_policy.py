"""Formulas as text and as bytes, attribute spaces, capsules and attribute keys."""

from __future__ import annotations

from targets import load_atheris, run

with load_atheris().instrument_imports(include=["tallystick"]):
    from formulas import ACME

    from tallystick.crypto.abe.capsule import Capsule, encapsulate
    from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey
    from tallystick.policy.check import check_policy
    from tallystick.policy.formula import Formula
    from tallystick.policy.parse import parse
    from tallystick.policy.space import AttributeSpace
    from tallystick.policy.subspaces import Dimension
    from tallystick.policy.topic_code import TopicCode
    from tallystick.policy.traits import traits_of

TEXT = "role::insurer && (region::EU || region::KR) && 2 of (trained, clearance >= 3, since < 2026-01-31)"
MASTER = AttributeMasterKey.generate(bytes(32))
FORMULA = parse(TEXT, ACME)
CAPSULE, _ = encapsulate(MASTER.public, FORMULA, 1, b"", bytes(32))
CODE = TopicCode((Dimension.of(ACME["acme.clearance"], 3), Dimension.of(ACME["acme.vin"], 2)))
KEY = MASTER.issue(b"", traits_of(ACME.values({"role": "insurer", "clearance": 9}), ACME), [1])

if __name__ == "__main__":
    run(
        [
            lambda data: check_policy(parse(data.decode(errors="replace"), ACME)),
            Formula.decode,
            AttributeSpace.decode,
            Capsule.decode,
            AttributeKey.decode,
            TopicCode.decode,
        ],
        [TEXT.encode(), FORMULA.encode(), ACME.encode(), CAPSULE.encode(), KEY.encode(), CODE.encode()],
    )
