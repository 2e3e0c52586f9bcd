"""Speed of the weights at the size of the paper's experiment, beside OR-Tools PDLP called plainly on the same program.

    python benchmarks/weights.py [--small] [--strength 2000] [--tolerance 1e-4] [--output FILE]

100,000 secrets in 50 to 100 examples each, 1.67 million examples, 7.5 million entries; capacities c·μ_j with ceilings
uniform in [2e-4, 1e-3] and prior 1e-10. At the default strength c nearly every secret binds. One run measures, in turn:
a cold solve, a solve at 1 % more capacity from the cold one, PDLP on the unreduced program, the sweep of c over
2^-6..2^4 times the strength (as the frontier does it, a few points at a time; and one by one, each started from the
last), and a whole plan with accounted capacities, 2000 rounds of 2048. Every gap is certified by the same code, PDLP's
too.
--small: a tenth of the size.
"""

import argparse
import json
import os
import platform
import resource
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.accounting.bounds import kl_target
from hush.weights import Program, Weights, solve_program, solve_several
from hush.weights.certify import certify

PRIOR = 1e-10


def instance(num_secrets: int, seed: int) -> tuple[hush.Incidence, np.ndarray]:
    """Incidence and ceilings, at the paper's density whatever the number of secrets."""
    rng = np.random.default_rng(seed)
    num_examples = round(16.7 * num_secrets)
    secret = np.repeat(np.arange(num_secrets), rng.integers(50, 101, num_secrets))
    example = rng.integers(0, num_examples, secret.size)
    incidence = hush.Incidence.from_pairs(example, secret, num_examples=num_examples, num_secrets=num_secrets)
    return incidence, rng.uniform(2e-4, 1e-3, num_secrets)


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def time_pdlp(incidence: hush.Incidence, program: Program, tolerance: float) -> dict[str, Any]:
    """OR-Tools PDLP as its documentation has it: the whole program, a relative tolerance, all threads."""
    from ortools.pdlp import solvers_pb2
    from ortools.pdlp.python import pdlp

    begin, cpu = time.perf_counter(), time.process_time()
    m, n = program.num_rows, program.num_columns
    task = pdlp.QuadraticProgram()
    task.resize_and_initialize(n, m)
    task.objective_vector = -np.ones(n)
    task.constraint_matrix = incidence.to_scipy().T.tocsc().astype(float)
    task.constraint_lower_bounds = np.full(m, -np.inf)
    task.constraint_upper_bounds = program.capacity_S
    task.variable_lower_bounds = np.zeros(n)
    task.variable_upper_bounds = program.upper_N
    settings = solvers_pb2.PrimalDualHybridGradientParams()
    settings.num_threads = os.cpu_count() or 1
    criteria = settings.termination_criteria.simple_optimality_criteria
    criteria.eps_optimal_relative, criteria.eps_optimal_absolute = tolerance, 0.0
    found = pdlp.primal_dual_hybrid_gradient(task, settings)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    proof = certify(program, found.primal_solution, -np.asarray(found.dual_solution))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "certified_gap": proof.gap,
        "iterations": found.solve_log.iteration_count,
        "peak_gb": peak_gigabytes(),
    }


def described(weights: Weights) -> dict[str, Any]:
    return {
        "seconds": weights.seconds,
        "certified_gap": weights.gap,
        "objective": weights.objective,
        "kept": float((weights.values > 1e-6).mean()),
        "solver": weights.solver,
    }


def time_hush(program: Program, tolerance: float, start: Weights | None = None) -> tuple[Weights, dict[str, Any]]:
    cpu = time.process_time()
    weights = solve_program(program, tolerance=tolerance, warm_start=start)
    return weights, described(weights) | {"cpu_seconds": time.process_time() - cpu}


def time_sweep(program: Program, shape: np.ndarray, strengths: list[float], tolerance: float) -> dict[str, Any]:
    """Several points at a time: their seconds overlap, the total is by the clock."""
    begin, cpu = time.perf_counter(), time.process_time()
    found = list(solve_several(program, [c * shape for c in strengths], tolerance=tolerance))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    rows = [{"strength": c} | described(weights) for c, weights in zip(strengths, found, strict=True)]
    return {"seconds": seconds, "cpu_seconds": cpu, "rows": rows}


def time_chain(program: Program, shape: np.ndarray, strengths: list[float], tolerance: float) -> dict[str, Any]:
    """One after another, each started from the last."""
    rows, last = [], None
    for c in strengths:
        last, row = time_hush(program.with_capacity(c * shape), tolerance, last)
        rows.append({"strength": c} | row)
    return {"seconds": sum(row["seconds"] for row in rows), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    parser.add_argument("--strength", type=float, default=2000.0)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--no-peer", action="store_true", help="leave OR-Tools PDLP out")
    parser.add_argument("--no-sweep", action="store_true", help="leave the sweep out")
    parser.add_argument("--no-plan", action="store_true", help="leave the whole plan out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "weights.json")
    options = parser.parse_args()

    incidence, ceiling = instance(10_000 if options.small else 100_000, options.seed)
    shape = np.asarray(kl_target(PRIOR, ceiling))
    begin = time.perf_counter()
    program = Program.of(incidence, options.strength * shape)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("hush", "numpy", "scipy", "numba", "ortools")},
        "size": {"examples": program.num_columns, "secrets": program.num_rows, "entries": program.num_entries},
        "tolerance": options.tolerance,
        "strength": options.strength,
        "build_seconds": time.perf_counter() - begin,
    }
    solve_program(program, tolerance=0.5)  # compile, or load what was compiled before
    cold, result["cold"] = time_hush(program, options.tolerance)
    result["cold"]["peak_gb"] = peak_gigabytes()
    print(f"cold: {result['cold']}")
    nearby = program.with_capacity(1.01 * program.capacity_S)
    _, result["warm, 1 % more capacity"] = time_hush(nearby, options.tolerance, cold)
    print(f"warm: {result['warm, 1 % more capacity']}")
    if not options.no_peer:
        result["pdlp"] = time_pdlp(incidence, program, options.tolerance)
        print(f"pdlp: {result['pdlp']}")
        _, again = time_hush(program, options.tolerance)  # beside the peer, since a shared machine drifts
        result["cold again"] = again
        result["pdlp_over_cold"] = result["pdlp"]["seconds"] / min(result["cold"]["seconds"], again["seconds"])
        print(f"cold again: {again}\npdlp / cold: {result['pdlp_over_cold']:.1f}")
    if not options.no_sweep:
        strengths = [options.strength * 2.0**k for k in range(-6, 5)]
        for name, sweep in (("sweep", time_sweep), ("sweep, one by one", time_chain)):
            found = sweep(program, shape, strengths, options.tolerance)
            _, beside = time_hush(program, options.tolerance)  # beside the sweep, since a shared machine drifts
            found["cold_seconds"] = beside["seconds"]
            found["over_cold"] = found["seconds"] / beside["seconds"]
            result[name] = found
            for row in found["rows"]:
                print(f"{name}: {row}")
            print(f"{name}: {found['seconds']:.1f} s, {found['over_cold']:.1f} cold solves", flush=True)
        if "pdlp" in result:
            result["sweep"]["over_pdlp"] = result["sweep"]["seconds"] / result["pdlp"]["seconds"]
            print(f"sweep: {result['sweep']['over_pdlp']:.1f} cold solves of PDLP")
    if not options.no_plan:
        begin = time.perf_counter()
        plan = hush.make_plan(incidence, prior=PRIOR, ceiling=ceiling, batch_size=2048, rounds=2000)
        result["make_plan"] = {
            "seconds": time.perf_counter() - begin,
            "noise_multiplier": plan.noise_multiplier,
            "kept_fraction": plan.kept_fraction,
        }
        print(f"make_plan: {result['make_plan']}")
    result["peak_gb"] = peak_gigabytes()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
