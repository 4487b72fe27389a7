"""A device in this process with something to lose, and what may be asked of its replies."""

from __future__ import annotations

import resource
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import save_file

import corsage
from corsage.app.client_app import make_client_app
from corsage.benchmarks.device.attacks import Attack
from corsage.benchmarks.device.messages import FEATURES, USERS, honest
from corsage.benchmarks.device.relay import relayed, worker
from corsage.benchmarks.device.watch import Watch, watched

SECRET = "hunter2"
LIMITS = {
    "max-epochs": 5,
    "max-steps": 50,
    "max-parameters": 50_000,
    "max-seconds": 30.0,
    "max-threads": 1,
}
LONGEST = 700
"""Characters of an error's reason; three users' causes may be in it."""
PLANTED = f"""
print("{SECRET}")
def factory(*_): raise SystemExit("{SECRET}")
def leak(*_): raise ValueError("{SECRET}")
"""


@dataclass
class Target:
    """A device in `folder`, `resident` if it has a worker, and what went wrong there."""

    folder: Path
    resident: bool = False
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    answered: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.home, self.outside = self.folder / "device", self.folder / "outside"
        self.state = self.home / "state"
        for folder in (self.home, self.outside, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(60, FEATURES)).astype(np.float32)
        names = np.repeat(np.array(USERS), 30)
        label, secret = np.arange(60) % 2, rng.normal(size=60)
        file = self.home / "own.npz"
        np.savez(file, x=x, label=label, user=names, secret=secret)
        (self.outside / "secret.json").write_text(f'["{SECRET}"]')
        save_file({"head": np.ones(3, np.float32)}, self.outside / "secret.safetensors")
        (self.outside / "planted.py").write_text(PLANTED)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
        self.app: ClientApp = make_client_app()
        self.worker = worker() if self.resident else None
        own: dict[str, Any] = {
            "data": str(file),
            "state-dir": str(self.state),
            "cluster": "a",
            **LIMITS,
        }
        self.context = Context(1, 2, own, RecordDict(), {})
        code = [*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, *corsage.__path__]
        reads = [*(Path(p).resolve() for p in code), file.resolve(), Path("/proc"), Path("/sys")]
        self.watch = Watch(reads, [self.state.resolve()])

    def ask(self, message: Message) -> Message:
        """Let the device answer."""
        message.metadata.__dict__["_message_id"] = "1"
        reply = relayed(self.worker, message, self.context) if self.worker else None
        return reply or self.app(message=message, context=self.context)

    def strike(self, attack: Attack) -> Message | None:
        """Let the device answer a hostile message, and note what should not be."""
        sys.modules.pop("planted", None)
        self.watch.seen, started = [], time.perf_counter()
        try:
            with watched(self.watch):
                reply = self.ask(attack.message)
        except BaseException as error:  # whatever leaves the app ends a device's process
            self.wrong.append(f"{attack.name}: {type(error).__name__}: {str(error)[:200]}")
            if isinstance(error, KeyboardInterrupt):
                raise
            return None
        self.longest = max(self.longest, time.perf_counter() - started)
        imported = ["imports planted"] if sys.modules.pop("planted", None) else []
        found = [*self.watch.seen, *imported, *self.judged(reply)]
        self.wrong += [f"{attack.name}: {what}" for what in found]
        self.refused, self.answered = (
            self.refused + reply.has_error(),
            self.answered + (not reply.has_error()),
        )
        return reply

    def judged(self, reply: Message) -> list[str]:
        """What is wrong with a reply."""
        if not reply.has_error():
            config: Any = reply.content["config"]
            causes = " ".join(map(str, config.get("causes", [])))
            # A cohort whose state is gone is called by the name that the message has for it.
            failed = set(config.get("failed", [])) - set(config.get("lost", []))
            foreign = sorted({*config.get("users", []), *failed} - set(USERS))
            return [f"users {foreign}"] * bool(foreign) + self.leaks(causes)
        return self.leaks(str(reply.error.reason))

    def leaks(self, text: str) -> list[str]:
        """What an error says that must not leave the device."""
        found = []
        if SECRET in text or str(self.home) in text or "max-seconds" in text:
            found.append(f"says {text[:300]!r}")
        if len(text) > LONGEST or not text.isprintable() or "emory" in text:
            found.append(f"says badly {text[:300]!r}")
        return found

    def lives(self) -> bool:
        """Whether the device still does honest work, and all files outside are as they were."""
        reply = self.ask(honest("fedavg", "train").message())
        names = sorted(path.name for path in self.outside.iterdir())
        whole = names == ["planted.py", "secret.json", "secret.safetensors"]
        return not reply.has_error() and whole and SECRET in (self.outside / names[1]).read_text()


def peak_memory() -> int:
    """Bytes of memory that this process had at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
