"""The benchmarks: `python -m corsage.benchmarks [NAME ...] [--json FILE]`.

Without names all of them run. Targets that are missed are shown as such; they are no error.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

from rich.console import Console

from corsage.app.output.usage import complain
from corsage.benchmarks.measure import Measure, table
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically
from corsage.core.keys import nearest
from corsage.core.version import VERSION
from corsage.experiments.words import Parser


def user_round() -> list[Measure]:
    """CPU seconds of a user-round, as a share of the usual or the bare loop."""
    from corsage.benchmarks import user_round as module

    return [
        Measure(
            row.case.name,
            row.ratio,
            row.case.target,
            f"of {row.case.against}",
            f"CPU ms: usual loop {1e3 * row.usual:.1f}, bare loop {1e3 * row.bare:.1f}, "
            f"Corsage {1e3 * row.corsage:.1f}",
        )
        for row in module.run()
    ]


def engines() -> list[Measure]:
    """What an engine costs beyond the clients' own work."""
    from corsage.benchmarks import engines as module

    return module.run()


def memory() -> list[Measure]:
    """Peak memory of 1,000 users on two Ray workers, all processes together."""
    from corsage.benchmarks import memory as module

    return module.run()


def ray() -> Iterator[Measure]:
    """What Ray takes to start, to hold, and for a message."""
    from corsage.benchmarks import ray_start as module

    return module.run()


def states() -> list[Measure]:
    """Personal states of simulated users: files, bytes and time beside other layouts."""
    from corsage.benchmarks import states as module

    return module.run()


def pfllib() -> list[Measure]:
    """The problem on which the rivals were measured: time, memory and accuracy."""
    from corsage.benchmarks import pfllib as module

    return module.run()


def own_models() -> Iterator[Measure]:
    """CPU seconds of a user-round of models that people bring, beside bare and tuned loops."""
    from corsage.benchmarks import own_models as module

    return module.run()


def paths() -> Iterator[Measure]:
    """All training paths of a model, and what the rule that chooses one loses."""
    from corsage.benchmarks import paths as module

    return module.run()


def methods() -> list[Measure]:
    """CPU seconds of a user-round of every method, as a share of as many bare SGD steps."""
    from corsage.benchmarks import methods as module

    return module.run()


def known_clusters() -> Iterator[Measure]:
    """Known clusters with 29,490 users: CPU seconds and memory of 5,000 iterations."""
    from corsage.benchmarks import known_clusters as module

    return module.run()


def sum_of_norms() -> Iterator[Measure]:
    """The exact sum-of-norms solver: CPU seconds beside CVXPY's."""
    from corsage.benchmarks import sum_of_norms as module

    return module.run()


def neighbour_graphs() -> Iterator[Measure]:
    """The same on graphs of ten neighbours, beside Clarabel; a path; time against certified gap."""
    from corsage.benchmarks import neighbour_graphs as module

    return module.run()


def silent() -> list[Measure]:
    """What silent devices cost beyond a run of honest ones, in all, in round times."""
    from corsage.benchmarks import silent as module

    return module.run()


def robust() -> list[Measure]:
    """Robust averages: accuracy with and without bad users, and CPU seconds of a round."""
    from corsage.benchmarks import robust as module

    return module.run()


def statistics() -> list[Measure]:
    """Linear models of 139 schools: how far the summary is from statsmodels'."""
    from corsage.benchmarks import statistics as module

    return module.run()


def mixed_models() -> list[Measure]:
    """Mixed models of the R packages' tables beside statsmodels: relative differences."""
    from corsage.benchmarks import mixed_models as module

    return module.run()


def beside_lme4() -> Iterator[Measure]:
    """Mixed models of R's tables, Gaussian and generalised, beside what lme4 prints of them."""
    from corsage.benchmarks import beside_lme4 as module

    return module.run()


def wide_tables() -> Iterator[Measure]:
    """Mixed models of tables with 5 to 300 columns, strengths estimated: CPU seconds of a run."""
    from corsage.benchmarks import wide_tables as module

    return module.run()


def first_line() -> list[Measure]:
    """Seconds until the console command says something."""
    from corsage.benchmarks import first_line as module

    return module.run()


def hessian() -> list[Measure]:
    """Per-FedAvg's Hessian-vector products beside exact ones: relative errors, and CPU seconds."""
    from corsage.benchmarks import hessian as module

    return module.run()


def tables() -> list[Measure]:
    """Raw tables under the default keys: what is learnt of them, and how fast they are read."""
    from corsage.benchmarks import tables as module

    return module.run()


def device_round() -> list[Measure]:
    """Three devices, FedRep: seconds a round, CPU seconds a message, and the numbers."""
    from corsage.benchmarks import device_round as module

    return module.run()


def large() -> list[Measure]:
    """Large models: CPU seconds and memory of FedAvg, and bytes where most of a model is frozen."""
    from corsage.benchmarks import large as module

    return module.run()


def million() -> list[Measure]:
    """A thousand to a million users that keep a state: a round, the start, memory and files."""
    from corsage.benchmarks import million as module

    return module.run()


def forgetting() -> list[Measure]:
    """A run that forgets a user beside a run without that user."""
    from corsage.benchmarks import forgetting as module

    return module.run()


def min_share() -> Iterator[Measure]:
    """Seven real tables under a leverage floor: what can be read, and what models lose."""
    from corsage.benchmarks import min_share as module

    return module.run()


BENCHMARKS: dict[str, Callable[[], Iterable[Measure]]] = {
    "user-round": user_round,
    "own-models": own_models,
    "paths": paths,
    "methods": methods,
    "pfllib": pfllib,
    "engines": engines,
    "memory": memory,
    "ray": ray,
    "states": states,
    "sum-of-norms": sum_of_norms,
    "neighbour-graphs": neighbour_graphs,
    "known-clusters": known_clusters,
    "silent": silent,
    "robust": robust,
    "statistics": statistics,
    "mixed-models": mixed_models,
    "beside-lme4": beside_lme4,
    "wide-tables": wide_tables,
    "forgetting": forgetting,
    "min-share": min_share,
    "first-line": first_line,
    "hessian": hessian,
    "million": million,
    "tables": tables,
    "device-round": device_round,
    "large": large,
}


COMMANDS = {
    **{name: f"{name}.command" for name in ("numbers", "house", "fuzz", "chaos")},
    "fuzz-device": "device.command",
    "doors": "doors",
    "liars": "liars",
}
"""Commands with options of their own: compare checkouts, attack the server, disturb runs, attack a
device, try every strategy by its name, and among liars; and the modules that they are in."""


def main(words: list[str]) -> int:
    """Run all or some benchmarks; 0, or 2 for a user's mistake, 1 for a failed run."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if words and words[0] in COMMANDS:
        command = import_module(f"corsage.benchmarks.{COMMANDS[words[0]]}")
        return int(command.main(words[1:]))
    try:
        names, file = parse(words)
        found: dict[str, list[dict[str, object]]] = {}
        for name in names:
            run(name, found.setdefault(name, []), lambda: keep(found, file))
    except ConfigError as error:
        return complain(error, 2)
    except (CorsageError, OSError) as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
    return 0


def parse(words: list[str]) -> tuple[list[str], str]:
    """Which benchmarks to run, and the file for their figures."""
    parser = Parser("python -m corsage.benchmarks", epilog=", ".join(BENCHMARKS))
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; without names all")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures there")
    found = parser.parse_intermixed_args(words)
    for name in found.names:
        if name not in BENCHMARKS:
            raise ConfigError(f"{name}: no such benchmark.{nearest(name, BENCHMARKS)}")
    return found.names or list(BENCHMARKS), found.json


def keep(found: dict[str, list[dict[str, object]]], file: str) -> None:
    """Write what there is so far, if it is to be written anywhere."""
    if file:
        content = {"corsage": VERSION, "benchmarks": found}
        write_atomically(Path(file).expanduser(), json.dumps(content, indent=2))


def run(name: str, found: list[dict[str, object]], written: Callable[[], None]) -> None:
    """Run one benchmark and print its table; `written` is called after each case."""
    benchmark = BENCHMARKS[name]
    print(f"{name} ...", file=sys.stderr, flush=True)
    measures = []
    for measure in benchmark():
        measures.append(measure)
        found.append(measure.as_json())
        written()
        print(f"{measure.name}: {measure.measured:.3f} {measure.unit}", file=sys.stderr, flush=True)
    title = (benchmark.__doc__ or name).split("\n")[0].rstrip(".")
    Console().print(table(title, measures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
