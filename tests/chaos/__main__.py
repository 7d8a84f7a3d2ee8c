"""`scripts/chaos`: see --help."""

import argparse
import random
import shlex
import sys
import traceback

from tests.chaos.plan import CONSOLIDATE, KINDS, kinds, plan
from tests.chaos.story import chaos
from tests.chaos.world import PIPELINES


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Real processes die, freeze and lose their network under load; after each "
        "round, every committed change must be in the stream exactly once, in order, and nothing "
        "else; or the tables of three databases in one. The plan of faults is a function of the "
        "seed alone.",
    )
    parser.add_argument("--seconds", type=float, default=120, help="of faults, about (120)")
    parser.add_argument("--seed", type=int, help="of the plan; a random one unless given, printed")
    parser.add_argument(
        "--pipeline",
        choices=sorted((*PIPELINES, CONSOLIDATE)),
        default="default",
        help="the way through Spark, or into tables",
    )
    parser.add_argument(
        "--only", default="", metavar="KIND,...", help=f"only these faults: {', '.join(KINDS)}"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan, do nothing")
    given = parser.parse_args()
    only = tuple(name for name in given.only.split(",") if name)
    possible = kinds(given.pipeline)
    if unknown := set(only) - set(possible):
        parser.error(f"no such fault of this pipeline: {', '.join(sorted(unknown))}")
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    if given.plan:
        for number, steps in enumerate(plan(seed, given.seconds, only or possible), 1):
            print(*(f"round {number}: {step}" for step in steps), sep="\n")
        return 0
    command = f"scripts/chaos --seed {seed} --seconds {given.seconds:g} --pipeline {given.pipeline}"
    command += f" --only {shlex.quote(given.only)}" if only else ""
    print(command, flush=True)
    try:
        outcome = chaos(
            seed=seed,
            seconds=given.seconds,
            pipeline=given.pipeline,
            only=only,
            say=lambda line: print(line, flush=True),
        )
    except Exception:
        traceback.print_exc()
        print(f"FAILED; again with: {command}", file=sys.stderr)
        return 1
    print(f"ok: {outcome.faults} faults, {outcome.changes} changes, all of them as they were")
    return 0


if __name__ == "__main__":
    sys.exit(main())
