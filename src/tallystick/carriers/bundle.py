"""Many small questions in one request: each is answered exactly as it would be alone, under the same signature.

A reader of ten thousand publishers needs a permit, a state proof and a lane's front for each. What a bundle may hold is
listed where routes are made (`service`): questions whose answers are small and change nothing. It has a bound, so that
one request stays one of the costs that a node knows.
"""

from __future__ import annotations

import logging
from copy import copy

from tallystick import wire
from tallystick.errors import Malformed, TallystickError, Unavailable
from tallystick.runtime.answers import Answer, answer_error, answer_value
from tallystick.runtime.gate import SignedHandler
from tallystick.runtime.router import Request, Routes
from tallystick.trust.envelope import Envelope

log = logging.getLogger(__name__)

PATH = "/v1/bundle"
QUESTIONS_MAX = 256  # a proof of the state has about a kilobyte: a quarter of a megabyte, and of a tenth of a second


class Bundle:
    """The handler; `add` names what may be asked in it."""

    def __init__(self) -> None:
        self._routes: Routes[SignedHandler] = Routes()

    def add(self, path: str, handler: SignedHandler) -> None:
        self._routes.add("GET", path, handler)

    async def handle(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        """wire [[path, query], …] to wire [[status, body], …]."""
        questions = wire.decode(body, "bundle")
        if not isinstance(questions, list) or len(questions) > QUESTIONS_MAX:
            raise Malformed(f"bundle: expected an array of at most {QUESTIONS_MAX} questions")
        answers = [await self._answer(request, envelope, question) for question in questions]
        return answer_value([[answer.status, answer.body] for answer in answers])

    async def _answer(self, request: Request, envelope: Envelope, question: object) -> Answer:
        try:
            match question:
                case [str(path), str(query)]:
                    one = copy(request)
                    one.method, one.path, one.query = "GET", path, query
                    return await self._routes.find(one)(one, envelope, b"")
            raise Malformed("bundle: a question is a path and a query")
        except TallystickError as error:
            return answer_error(error)
        except Exception:
            log.exception("fault while answering %s in a bundle", question)
            return answer_error(Unavailable("the node failed to answer; its log says why"))
