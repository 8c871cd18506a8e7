"""A rank that runs scenarios: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import os
import sys
import traceback

import torch

from tailwatch_tracing import service


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    from tests.training import framework_scenarios, scenarios

    for line in sys.stdin:
        name, arguments = json.loads(line)
        service._jobs.clear()
        torch.manual_seed(0)
        try:
            where = scenarios if hasattr(scenarios, name) else framework_scenarios
            answer = {"result": getattr(where, name)(**arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
