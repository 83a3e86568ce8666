"""The node's side of witnessing: the newest checkpoint goes to every witness, and back to the ledger with the quorum.

Threat: none of the node's own; witnesses are there against the operator of this very node. What matters here is that
one witness that is slow or away does not hold up the others: each is asked by a thread of its own, a round ends as soon
as the quorum has signed, and whoever still thinks is left out of the rounds until it has answered. The answers are
checked by the ledger before it publishes anything (C2SP tlog-witness, tlog-cosignature).
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tallystick.errors import Forged, Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger.engine import NodeLedger
from tallystick.ledger.witness import encode_request, read_answer
from tallystick.trust.notes import NOTE_BYTES_MAX, Checkpoint, Note, NoteSignature, NoteVerifier, witness_verifiers
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

ANSWER_S = 5.0  # a witness writes to its disk before it signs

Signatures = tuple[NoteSignature, ...]


class Witnessing:
    """Asks the witnesses under `urls`; `round` is to be called again and again, by one thread."""

    def __init__(self, ledger: NodeLedger, trust: TrustFile, urls: Sequence[str]) -> None:
        if len(urls) < trust.quorum:
            raise Misuse(
                f"witness_urls: {trust.quorum} witnesses must cosign, {len(urls)} are named",
                hint='name them in node.toml: witness_urls = ["https://…"]',
            )
        self._ledger, self._quorum = ledger, trust.quorum
        self._verifiers = witness_verifiers(trust)
        self._pool = ThreadPoolExecutor(max(1, len(urls)), "witness")
        self._urls = list(urls)
        self._sizes = dict.fromkeys(urls, 0)  # what each has cosigned last, as far as we know
        self._busy: dict[str, Future[Signatures]] = {}
        self._told: dict[str, str] = {}  # the last trouble with each, so that it is logged once
        self._done = ""
        self.trouble = ""  # what keeps checkpoints from being cosigned, where the trust file demands that

    def round(self) -> None:
        """Bring the newest checkpoint to the witnesses; publish it when the quorum has cosigned."""
        note = Note.decode(self._ledger.newest_note())
        if note.text == self._done:
            return
        idle = [url for url in self._urls if url not in self._busy or self._busy[url].done()]
        asked = {self._pool.submit(self._ask, url, note): url for url in idle}
        self._busy |= {url: future for future, url in asked.items()}
        signed: set[NoteVerifier] = set()
        pending = set(asked)
        while pending:
            done, pending = wait(pending, ANSWER_S, FIRST_COMPLETED)
            if not done:
                break
            for future in done:
                note = self._add(note, asked[future], future, signed)
            if len(signed) >= max(1, self._quorum):
                self._ledger.cosign(note.encode())
                self._done, self.trouble = note.text, ""
                return
        self._tell(len(signed))

    def _tell(self, signed: int) -> None:
        """Say who is to blame that the quorum was not reached in this round."""
        if self._quorum:
            why = "; ".join(f"{url}: {self._told.get(url, 'no answer yet')}" for url in self._urls)
            self.trouble = f"witnesses away: {signed} of {self._quorum} have cosigned the newest checkpoint; {why}"

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, url: str, note: Note) -> Signatures:
        """Ask one witness for cosignatures, and a second time where it wants the proof from another size."""
        size = Checkpoint.decode(note.text).size
        for _ in range(2):
            old = self._sizes[url]
            if old > size:
                raise Refused(f"it has cosigned {old} transactions, the ledger has {size}", reason="rollback")
            body = encode_request(old, self._ledger.consistency(old, size), note.encode())
            answer = read_answer(*_post(f"{url.rstrip('/')}/add-checkpoint", body))
            if not isinstance(answer, int):
                self._sizes[url] = size
                return answer
            self._sizes[url] = answer
        raise Refused("it does not continue from where it says it stands", reason="witness-refused")

    def _add(self, note: Note, url: str, future: Future[Signatures], signed: set[NoteVerifier]) -> Note:
        """The note with this answer's cosignatures, as far as they are those of known witnesses."""
        try:
            for signature in future.result():
                verifier = self._verifier(signature)
                verifier.verify(note.text, signature.signature)
                if verifier not in signed:
                    note = note.add(signature)
                    signed.add(verifier)
            if self._told.pop(url, None) is not None:
                log.warning("witness %s: it cosigns again", url)
        except TallystickError as error:
            if self._told.get(url) != str(error):
                self._told[url] = str(error)
                log.warning("witness %s: %s", url, error)
        return note

    def _verifier(self, signature: NoteSignature) -> NoteVerifier:
        for verifier in self._verifiers:
            if (verifier.name, verifier.key_id) == (signature.name, signature.key_id):
                return verifier
        raise Forged(f'"{signature.name}" is not one of the trust file\'s witnesses')


def _post(url: str, body: bytes) -> tuple[int, bytes]:
    """Status and content of the answer: a witness speaks plain HTTP, and its word is its signature."""
    request = urllib.request.Request(url, body, {"content-type": "text/plain"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
            return answer.status, answer.read(NOTE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(NOTE_BYTES_MAX)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no answer: {error}") from error
