"""`verify.html`, the second implementation of the formats: in a browser, from a disk, it says of every proof, receipt
and checkpoint what Python says, and shows it to people; it can send nothing."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from makers import GROUPED, INSTANCE, entropy, rows, seed, token
from provers import LEDGER, Scene, sign_note, trust_file
from vector_readers import JUDGES
from verify_cases import (
    FILE,
    KINDS,
    OTHER_PLACES,
    VECTORS,
    Case,
    agree,
    altered,
    expect,
    told,
    trust_json,
    vectors,
    with_topic,
)
from verify_cases import verify_page as verify_page

from tallystick.crypto import merkle
from tallystick.parcel.prove import Proof, verify_proof
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.record.show import readable
from tallystick.trust.promise import Anchor, JointAnchor, Refusal
from tallystick.trust.receipt import Receipt

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


# --- the vectors ---


def test_every_good_vector_holds_and_says_what_it_says_in_python(verify_page: Page) -> None:
    cases = vectors("good")
    assert set(agree(verify_page, cases).values()) == {("holds", "")}
    for (name, case), answer in zip(cases.items(), told(verify_page, cases.values()), strict=True):
        [vector] = [one for one in VECTORS["good"] if one["name"] == name]
        facts = answer["facts"] | (answer["facts"].get("anchored") or {})
        found = {key: facts.get({"state": "state_root"}.get(key, key)) for key in vector["says"] if key != "row"}
        assert found == {key: value for key, value in vector["says"].items() if key != "row"}, case
        assert answer["kind"] == vector["kind"]


def test_every_bad_vector_is_refused_for_the_reason_it_states(verify_page: Page) -> None:
    found = agree(verify_page, vectors("bad"))
    assert found == {one["name"]: (one["failure"], one["reason"]) for one in VECTORS["bad"] if one["kind"] in KINDS}


def test_no_kind_of_vector_is_forgotten() -> None:
    assert set(JUDGES) == {*KINDS, *OTHER_PLACES}


# --- what it says ---


def anchored(scene: Scene, **changes: Any) -> Proof:
    return scene.prove(receipt=scene.anchorage(**changes).receipt(1))


def pending(scene: Scene) -> Proof:
    return altered(scene, scene.prove(), {20: [bytes(32), 7]})


def entered(anchor: Callable[[int, bytes], bytes]) -> Callable[[Scene], Proof]:
    """With a receipt whose anchor is another kind of entry, made of the tree's size and root."""

    def prove(scene: Scene) -> Proof:
        place = scene.anchorage()
        tree = merkle.Tree([merkle.leaf_hash(parcel) for parcel in place.parcels])
        entry = anchor(tree.size, tree.root())
        receipt = Receipt(1, tuple(tree.inclusion(1, tree.size)), place.entry_proof(entry))
        return scene.prove(receipt=receipt)

    return prove


def notarised(size: int, root: bytes) -> bytes:
    return Anchor(token("brakes"), 3, size, root, 1, (Refusal(1, 2, "no-right"), Refusal(2, 3, "gap"))).encode_entry()


def joint(size: int, root: bytes) -> bytes:
    signatures = ((1, bytes(64)), (3, bytes(64)))
    return JointAnchor(INSTANCE, b"", 4, b"", 2, token("brakes"), 3, size, root, 0, signatures).encode_entry()


def chained(signers: int) -> Callable[[], Scene]:
    """Of an instance whose ledger is a chain of four validators."""

    def made() -> Scene:
        scene = Scene.of()
        scene.trust = trust_file(ledger=4, ledger_threshold=3, witnesses=2, quorum=0)
        return scene

    return made


SCENES: dict[str, tuple[Callable[[], Scene], Callable[[Scene], Proof]]] = {
    "a row alone": (Scene.of, Scene.prove),
    "anchored": (Scene.of, anchored),
    "padded": (lambda: Scene.of(padded=True), Scene.prove),
    "pending": (Scene.of, pending),
    "one of two groups": (lambda: Scene.of(rows(0, 5, GROUPED)), lambda scene: scene.prove(3, 1)),
    "one of two topics": (lambda: Scene.of(topics=("brakes", "tyres")), anchored),
    "the topic's row shown": (Scene.of, with_topic),
    "witnessed": (lambda: Scene.of(witnesses=2), lambda scene: anchored(scene, cosigners=3)),
    "three of four validators": (chained(3), lambda scene: anchored(scene, signers=3)),
    "four validators and two witnesses": (chained(4), lambda scene: anchored(scene, signers=4, cosigners=2)),
    "a notary's anchor": (Scene.of, entered(notarised)),
    "an overlay's anchor": (Scene.of, entered(joint)),
    "the last of 300 rows": (lambda: Scene.of(rows(0, 300)), lambda scene: scene.prove(299)),
}


@pytest.mark.parametrize("name", SCENES)
def test_it_says_word_for_word_what_is_proved_and_what_is_not(verify_page: Page, name: str) -> None:
    make, prove = SCENES[name]
    scene = make()
    data = prove(scene).encode()
    proven = verify_proof(data, scene.trust)
    given = {"publisher": proven.publisher.hex(), "topic": proven.token.hex()}
    [answer] = told(verify_page, [Case(scene.trust.to_json(), data, **given)])
    assert (answer["kind"], answer["verdict"]) == ("proof", "holds")
    assert answer["proved"] == list(proven.statements)
    assert answer["notProved"] == list(proven.not_proven)
    facts = answer["facts"]
    assert facts["as_expected"] == ["publisher", "topic"]
    assert facts["claimed_time_ms"] == proven.claimed_time_ms
    assert facts["tenant"] == (proven.tenant and proven.tenant.hex())
    if proven.anchored:
        found = {key: facts["anchored"][key] for key in ("partition", "offset", "height", "cosigners", "validators")}
        assert found == {key: json.loads(json.dumps(getattr(proven.anchored, key))) for key in found}


def test_whose_it_is_and_which_topic_s_is_held_to_what_is_expected(verify_page: Page) -> None:
    scene = Scene.of()
    trust, data = scene.trust.to_json(), scene.prove().encode()
    found = agree(
        verify_page,
        {
            "another publisher": Case(trust, data, publisher="00" * 16),
            "another topic": Case(trust, data, topic="11" * 16),
        },
    )
    assert list(found.values()) == [("refused", "other-publisher"), ("refused", "other-topic")]
    [answer] = told(verify_page, [Case(trust, data, publisher="the car")])
    assert (answer["failure"], answer["message"]) == ("misuse", "publisher: 32 hex digits expected")


# --- rows of every type ---

EVERY_TYPE = Schema.parse(
    "i8 int8, i16 int16, i32 int32, i64 int64, u8 uint8, u16 uint16, u32 uint32, u64 uint64, f float32, d float64,"
    " yes bool, text string, raw binary, day date32, s timestamp[s], ms timestamp[ms, UTC], us timestamp[us],"
    " ns timestamp[ns, Europe/Berlin], sum decimal128(38, 4), whole decimal128(5, 0), part decimal128(3, 3),"
    " xs list<list<int16>>, at struct<lat float64, tags list<string>, in struct<x uint64>>"
)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def least(bits: int) -> int:
    return -(1 << bits - 1)


@cache
def every_type() -> tuple[Scene, list[dict[str, Any]]]:
    """Rows of nothing, of the least and the greatest values, and of what is written in some special way."""
    times = [0, -1, LOWEST, LOWEST + 1, HIGHEST, -62_135_683_200, 253_402_300_800, 951_782_400, 1_700_000_000_123]
    floats = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e300, -5e-324, 0.1, 1e16]
    days = [0, -1, least(32), -least(32) - 1, -719_529, -719_162, 11_016, 2_932_897, -(10**6)]
    texts = ["", "é", '"\\\n\u0001', "\u2028</script>", "\U0001f697", "a\u202eb", "null", " ", "\x7f"]
    sums = ["0", "-0.0001", "1234567890123456789012345678901234.5678", "-12.3", "0.1", "1", "-1", "99.9999", "10"]
    rows = [
        {
            **{f"i{bits}": least(bits) + i if i % 2 else -least(bits) - 1 - i for bits in (8, 16, 32, 64)},
            **{f"u{bits}": (1 << bits) - 1 - i for bits in (8, 16, 32, 64)},
            "f": floats[i],
            "d": floats[-1 - i],
            "yes": bool(i % 2),
            "text": texts[i],
            "raw": bytes(range(i)),
            "day": days[i],
            **dict.fromkeys(("s", "ms", "us", "ns"), times[i]),
            "sum": Decimal(sums[i]),
            "whole": Decimal(i - 4),
            "part": Decimal(i - 4).scaleb(-3),
            "xs": [None, [], [1, None, -i]][: i % 4],
            "at": {"lat": float(i), "tags": texts[:i], "in": {"x": i}},
        }
        for i in range(9)
    ]
    rows.append(dict.fromkeys(EVERY_TYPE.arrow.names))
    columns = [
        pa.array([row[field.name] for row in rows], pa.int32() if field.name == "day" else pa.int64()).cast(field.type)
        if field.name in ("day", "s", "ms", "us", "ns")
        else pa.array([row[field.name] for row in rows], field.type)
        for field in EVERY_TYPE.arrow
    ]
    batch = Batch.of(EVERY_TYPE, pa.RecordBatch.from_arrays(columns, schema=EVERY_TYPE.arrow))
    return Scene.of(batch), rows


def test_rows_of_every_type_read_as_in_python(verify_page: Page) -> None:
    scene, made = every_type()
    proofs = [scene.prove(leaf).encode() for leaf in range(len(made))]
    answers = told(verify_page, [Case(scene.trust.to_json(), proof) for proof in proofs])
    for proof, answer in zip(proofs, answers, strict=True):
        expected = readable(EVERY_TYPE.arrow, verify_proof(proof, scene.trust).row)
        found = {name: json.loads(text) for name, text in answer["row"]}
        assert json.dumps(found) == json.dumps(expected)  # as text: zeros have signs, and true is not 1


# --- receipts and checkpoints alone ---


def test_a_receipt_is_of_a_parcel_that_is_given_as_its_hash_or_its_file(verify_page: Page) -> None:
    scene = Scene.of()
    parcel, trust = scene.verified.parcel, scene.trust.to_json()
    receipt = scene.anchorage().receipt(1).encode()
    elsewhere = scene.anchorage(token=token("tyres")).receipt(1).encode()
    other = scene.world.lane("bus").seal(rows(0, 3), now_ms=1, entropy=entropy(1))
    files = [b64encode(one.encode()).decode() for one in (parcel, other)]
    answers = told(
        verify_page,
        [
            Case(trust, receipt, parcel=parcel.hash.hex()),
            Case(trust, receipt, parcel_file=files[0]),
            Case(trust, receipt, parcel_file=files[1]),
            Case(trust, elsewhere, parcel_file=files[0]),
            Case(trust, receipt),
        ],
    )
    assert [one.get("verdict", one.get("refused")) for one in answers] == [
        *("holds", "holds", "forged", "wrong-topic", "no-parcel")
    ]
    at = Receipt.decode(receipt).verify(parcel.hash, token("brakes"), scene.trust)
    for answer in answers[:2]:
        assert (answer["proved"], answer["notProved"]) == ([*at.statements], [*at.not_proven])


def test_what_is_expected_and_means_nothing_for_a_file_is_misuse_as_it_is_to_the_command(verify_page: Page) -> None:
    scene, topic = Scene.of(), token("brakes").hex()
    parcel, trust = scene.verified.parcel.hash.hex(), scene.trust.to_json()
    note = sign_note(scene.trust.origin, 9, seed("root"), ledger=LEDGER[:1])
    answers = told(
        verify_page,
        [
            Case(trust, scene.prove().encode(), topic=topic, parcel=parcel),
            Case(trust, scene.anchorage().receipt(1).encode(), publisher=topic, parcel=parcel),
            Case(trust, note, topic=topic),
        ],
    )
    assert {one["failure"] for one in answers} == {"misuse"}
    assert [one["message"] for one in answers] == [
        f"{what}: it means nothing for a {kind}; leave it out"
        for what, kind in (("parcel", "proof"), ("publisher", "receipt"), ("topic", "checkpoint"))
    ]


HISTORIES = {  # a trust file, how many of its ledger's keys signed, and how many witnesses
    "the operator alone": (trust_file(), 1, 0),
    "two witnesses": (trust_file(witnesses=2, quorum=2), 1, 2),
    "three of four validators": (trust_file(ledger=4, ledger_threshold=3, witnesses=2), 3, 0),
    "four validators and two witnesses": (trust_file(ledger=4, ledger_threshold=3, witnesses=2), 4, 2),
}


def test_receipts_and_checkpoints_say_word_for_word_what_python_says(verify_page: Page) -> None:
    scene = Scene.of()
    cases: dict[str, Case] = {}
    parcel, topic = scene.verified.parcel.hash.hex(), token("brakes").hex()
    for name, (trust, signers, cosigners) in HISTORIES.items():
        scene.trust = trust
        receipt = scene.anchorage(signers=signers, cosigners=cosigners).receipt(1).encode()
        note = sign_note(trust.origin, 9, seed("root"), ledger=LEDGER[:signers], cosigners=cosigners)
        cases |= {
            f"a receipt: {name}": Case(trust.to_json(), receipt, parcel=parcel),
            f"a receipt of the topic: {name}": Case(trust.to_json(), receipt, parcel=parcel, topic=topic),
            f"a checkpoint: {name}": Case(trust.to_json(), note),
        }
    found = agree(verify_page, cases)
    assert set(found.values()) == {("holds", "")}
    answers = dict(zip(cases, told(verify_page, cases.values()), strict=True))
    assert any("newest" in gap for gap in answers["a checkpoint: the operator alone"]["notProved"])
    assert "validators showed everybody" in answers["a receipt: three of four validators"]["notProved"][-1]


# --- a browser that lacks something ---

LACKING = """
    const imports = SubtleCrypto.prototype.importKey;
    SubtleCrypto.prototype.importKey = function (form, key, algorithm, ...rest) {
        const name = algorithm.name ?? algorithm;
        if (name === %r) throw new DOMException("no such algorithm", "NotSupportedError");
        return imports.call(this, form, key, algorithm, ...rest);
    };
"""


def test_a_browser_without_ml_dsa_names_the_half_that_it_did_not_check(page: Page) -> None:
    page.add_init_script(LACKING % "ML-DSA-65")
    page.goto(FILE.as_uri())
    good = vectors("good")
    for answer in told(page, good.values()):
        assert answer["verdict"] == "incomplete"
        assert "ML-DSA-65 half" in answer["notProved"][0]
        assert "was not checked" in answer["summary"]
    for answer in told(page, vectors("bad").values()):
        assert answer["refused"]
    give(page, good["proof: a row with its receipt"])
    banner = page.locator("#verdict .banner")
    expect(banner).to_contain_text("The proof was not checked in full")
    assert banner.get_attribute("class") == "banner incomplete"


def test_a_browser_without_ed25519_accepts_nothing(page: Page) -> None:
    page.add_init_script(LACKING % "Ed25519")
    page.goto(FILE.as_uri())
    assert {one["refused"] for one in told(page, vectors("good").values())} == {"browser"}


# --- its policy ---


def test_the_hashes_of_the_policy_are_those_of_script_and_style() -> None:
    html = FILE.read_text(encoding="utf-8")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    for tag in ("script", "style"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy, f"write this hash of the {tag}: sha256-{digest}"
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search(r"\b(src|href|on\w+|style)=|https?:|innerHTML|fetch\(|import\b(?!Key|ed)", html)


@pytest.fixture
def served() -> Iterator[tuple[str, list[str]]]:
    """The page on a host of this machine, and the paths that it is asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            data = FILE.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_from_a_host_it_asks_for_nothing_but_itself(page: Page, served: tuple[str, list[str]]) -> None:
    place, asked = served
    page.goto(f"{place}/verify.html")
    agree(page, vectors("good"))
    give(page, vectors("good")["proof: a row with its receipt"])
    expect(page.locator("#verdict h2").first).to_have_text("The proof holds")
    assert asked == ["/verify.html"]


STOPPED = """([way, place]) => new Promise(done => {
    const leave = (name, how) => document.body.append(Object.assign(document.createElement(name), how));
    const ways = {
        fetch: () => fetch(place).catch(() => {}),
        beacon: () => navigator.sendBeacon(place, "x"),
        image: () => leave("img", {src: place}),
        style: () => leave("link", {rel: "stylesheet", href: place}),
        frame: () => leave("iframe", {src: place}),
        form: () => leave("form", {action: place}) ?? document.forms[0].submit(),
        markup: () => document.body.innerHTML = "<b>",
        script: () => leave("script", {textContent: "document.title = 1"}),
    };
    document.addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
    try { ways[way](); } catch { }
})"""
LEAKS = {
    "fetch": "connect-src",
    "beacon": "connect-src",
    "image": "img-src",
    "style": "style-src-elem",
    "frame": "frame-src",
    "form": "form-action",
    "markup": "require-trusted-types-for",
    "script": "require-trusted-types-for",
}


@pytest.mark.parametrize("way", LEAKS)
def test_its_policy_stops_what_would_send_or_run(browser: Browser, served: tuple[str, list[str]], way: str) -> None:
    place, asked = served
    context = browser.new_context()
    page = context.new_page()
    page.goto(FILE.as_uri())
    assert page.evaluate(STOPPED, [way, f"{place}/leak"]) == LEAKS[way]
    context.close()
    assert asked == []


# --- what people see ---


def give(page: Page, case: Case, **others: bytes) -> None:
    """Choose the files, as a person does."""
    for slot, data in {"trust": case.trust.encode(), "subject": case.data, **others}.items():
        page.set_input_files(f"#{slot}", {"name": f"{slot}.file", "mimeType": "", "buffer": data})


def test_files_are_chosen_and_the_verdict_is_said(verify_page: Page) -> None:
    page, good = verify_page, vectors("good")
    give(page, good["proof: a row with its receipt"])
    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict.get_by_role("status")).to_contain_text("under the trust file of instance")
    expect(verdict.get_by_role("heading").first).to_have_text("The proof holds")
    for heading in ("The row", "Proved", "Not proved", "In detail"):
        expect(verdict.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    give(page, vectors("bad")["proof: another row"])
    expect(verdict.get_by_role("heading")).to_have_text("Refused: forged")
    expect(verdict).to_contain_text("the proof gives another root")
    give(page, good["checkpoint: with two witnesses"])
    expect(verdict.get_by_role("heading").first).to_have_text("The checkpoint holds")


def test_a_receipt_asks_for_its_parcel(verify_page: Page) -> None:
    page, case = verify_page, vectors("good")["receipt: the fourth of five parcels"]
    give(page, case)
    heading = page.locator("#verdict h2").first
    expect(heading).to_have_text("Refused: no-parcel")
    page.get_by_label("Parcel's hash").fill(case.parcel)
    expect(heading).to_have_text("The receipt holds")
    page.get_by_text("What do you expect?").click()
    page.get_by_label("Topic's token").fill("00" * 16)
    expect(heading).to_have_text("Refused: wrong-topic")
    scene = Scene.of()
    page.get_by_label("Parcel's hash").fill("")
    page.get_by_label("Topic's token").fill("")
    give(
        page, Case(scene.trust.to_json(), scene.anchorage().receipt(1).encode()), parcel=scene.verified.parcel.encode()
    )
    expect(heading).to_have_text("The receipt holds")


DROP = """([name, text]) => {
    const files = new DataTransfer(), bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
    files.items.add(new File([bytes], name));
    dispatchEvent(new DragEvent("drop", {dataTransfer: files, cancelable: true}));
}"""


def test_dropped_files_find_their_places(verify_page: Page) -> None:
    scene = Scene.of()
    receipt = scene.anchorage().receipt(1).encode()
    for name, data in {"a": scene.verified.parcel.encode(), "b": receipt, "c": scene.trust.to_json().encode()}.items():
        verify_page.evaluate(DROP, [name, b64encode(data).decode()])
    expect(verify_page.locator("#verdict h2").first).to_have_text("The receipt holds")


def test_no_verdict_stands_beside_a_file_that_could_not_be_read(verify_page: Page) -> None:
    give(verify_page, vectors("good")["proof: a row with its receipt"])
    heading = verify_page.locator("#verdict h2").first
    expect(heading).to_have_text("The proof holds")
    verify_page.evaluate("() => { File.prototype.arrayBuffer = () => Promise.reject(new Error('it is gone')); }")
    verify_page.set_input_files("#subject", {"name": "other", "mimeType": "", "buffer": b"x"})
    expect(heading).to_have_text("Refused: unreadable")
    expect(verify_page.get_by_role("status")).to_contain_text("other: it is gone")
    assert verify_page.locator("#found").inner_text() == ""


HOSTILE = '<img src=x onerror="document.title=1">'


def test_names_and_values_of_strangers_are_text(verify_page: Page) -> None:
    named = Schema(pa.schema([pa.field(HOSTILE, pa.string())]))
    turned = "a\u202e" + HOSTILE
    scene = Scene.of(Batch.of(named, pa.RecordBatch.from_pydict({HOSTILE: [turned, "x" * 9000]}, schema=named.arrow)))
    give(verify_page, Case(scene.trust.to_json(), scene.prove(0).encode()))
    row = verify_page.locator("#verdict dl").first
    expect(row.locator("dt")).to_have_text(HOSTILE)
    expect(row.locator("dd")).to_have_text(json.dumps(turned, ensure_ascii=False).replace("\u202e", "\\u{202e}"))
    assert verify_page.locator("img").count() == 0
    give(verify_page, Case(trust_json({"name": HOSTILE}), scene.prove(1).encode()))
    expect(verify_page.locator("#verdict p").first).to_contain_text(HOSTILE)
    expect(row.locator("dd")).to_contain_text("… and 5002 characters more")


def test_the_keyboard_suffices(verify_page: Page) -> None:
    reached = []
    for _ in range(5):
        verify_page.keyboard.press("Tab")
        reached.append(verify_page.evaluate("document.activeElement.id || document.activeElement.localName"))
        if reached[-1] == "summary":
            verify_page.keyboard.press("Enter")
    assert reached == ["trust", "subject", "summary", "publisher", "topic"]


SIZES = {"phone": (390, 844), "desk": (1280, 900)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read_by_everybody(verify_page: Page, size: str, scheme: Literal["light", "dark"]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = verify_page
    page.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
    page.emulate_media(color_scheme=scheme)
    scene, rows = every_type()
    page.get_by_text("What do you expect?").click()
    for case in (Case("", b""), Case(scene.trust.to_json(), scene.prove(len(rows) - 2).encode()), Case("{", b"\x8b")):
        if case.trust:
            give(page, case)
            expect(page.locator("#verdict h2").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
