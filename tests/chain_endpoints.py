"""Four validators in this process that agree without CometBFT, each behind an RPC of its own; the first one may lie.

What lies is a validator with its true key: whatever it is asked, it signs what it likes. Blocks are made as
transactions come in, one after the other, on all of them.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ledger_world import NOW_MS, World

from tallystick.abci import messages as m
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.block import Transaction
from tallystick.ledger.cometbft.application import LedgerApplication, genesis_state
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger, chain_id
from tallystick.runtime.sources import SystemClock

HASTY = ClientSettings(submit_s=5, answer_s=2, again_s=0.2, lag_s=0.5)


class LyingValidator(LedgerApplication):
    """A validator that tells the truth, but for `lies`: by question, what it makes of the arguments and the answer."""

    def __init__(self, path: str, world: World, key: SigningKey) -> None:
        super().__init__(path, world.trust, key)
        self._known = {name: self._bent(name, method) for name, method in self._methods.items()}
        self.become_honest()

    def become_honest(self) -> None:
        self.lies: dict[str, Callable[..., Any]] = {}
        self.refuses: str | None = None  # the reason that it gives to everybody who hands something in
        self.swallows = False
        self._methods = dict(self._known)

    def _bent(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def answer(reader: Any, *arguments: Any) -> Any:
            true = method(reader, *arguments)
            return self.lies[name](true, *arguments) if name in self.lies else true

        return answer

    def forget_how_to(self, name: str) -> None:
        """As an older release, which does not know this question."""
        del self._methods[name]

    def check_tx(self, request: m.RequestCheckTx) -> m.ResponseCheckTx:
        if self.refuses:
            return m.ResponseCheckTx(code=1, codespace=self.refuses, log="the door is closed")
        return super().check_tx(request)


class InProcessChain:
    def __init__(self, folder: Path, count: int = 4) -> None:
        keys = [SigningKey.from_seed(bytes([number + 1]) * 32) for number in range(count)]
        self.world = World(ledger_keys=tuple(key.public.raw for key in keys), ledger_threshold=2 * count // 3 + 1)
        self._lock, self.height = threading.Lock(), 0
        self.validators = [LyingValidator(str(folder / f"{i}.sqlite"), self.world, key) for i, key in enumerate(keys)]
        begin = m.RequestInitChain(
            m.Timestamp(NOW_MS // 1000),
            app_state_bytes=json.dumps(genesis_state(self.world.trust)).encode(),
            initial_height=1,
        )
        for one in self.validators:
            one.init_chain(begin)
        self.servers = [self._serve(one) for one in self.validators]
        for transaction in self.world.founding():
            self.block(transaction)

    @property
    def liar(self) -> LyingValidator:
        return self.validators[0]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{server.server_port}" for server in self.servers]

    def client(self, *addresses: str, settings: ClientSettings = HASTY) -> CometbftLedger:
        """One that asks the liar first, unless other addresses are named."""
        url = "cometbft://" + ",".join(addresses or self.addresses)
        return CometbftLedger(url, self.world.trust, SystemClock(), settings)

    def block(self, *transactions: Transaction | bytes) -> None:
        with self._lock:
            self.height += 1
            data = tuple(one if isinstance(one, bytes) else one.data for one in transactions)
            time = m.Timestamp(NOW_MS // 1000 + self.height)
            for one in self.validators:
                one.finalize_block(m.RequestFinalizeBlock(data, height=self.height, time=time))
                one.commit(m.RequestCommit())

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()
        for one in self.validators:
            one.close()

    def _serve(self, validator: LyingValidator) -> ThreadingHTTPServer:
        chain = self

        class Rpc(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/broadcast_tx_sync":
                    result = chain._hand_in(validator, bytes.fromhex(body.decode().removeprefix("tx=0x")))
                else:
                    asked = json.loads(body)
                    result = chain._call(validator, asked["method"], asked["params"])
                answer = json.dumps({"result": result}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Rpc)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _call(self, validator: LyingValidator, method: str, params: dict[str, str]) -> Any:
        if method == "status":
            return {"node_info": {"network": chain_id(self.world.instance)}}
        found = validator.query(m.RequestQuery(path=params["path"], data=bytes.fromhex(params["data"])))
        told = {"code": found.code, "log": found.log, "info": found.info, "codespace": found.codespace}
        return {"response": {**told, "value": b64encode(found.value).decode()}}

    def _hand_in(self, validator: LyingValidator, data: bytes) -> Any:
        checked = validator.check_tx(m.RequestCheckTx(data))
        if checked.code == m.OK and not validator.swallows:
            self.block(data)
        return {"code": checked.code, "log": checked.log, "codespace": checked.codespace}
