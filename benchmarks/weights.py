"""Speed of the weights at the size of the paper's experiment, beside OR-Tools PDLP called plainly on the same program.

    python benchmarks/weights.py [--small] [--strength 2000] [--tolerance 1e-4] [--highs] [--output FILE]

100,000 secrets in 50 to 100 examples each, 1.67 million examples, 7.5 million entries; capacities c·μ_j with ceilings
uniform in [2e-4, 1e-3] and prior 1e-10. At the default strength c nearly every secret binds. One run measures, in turn:
a cold solve, a solve at 1 % more capacity from the cold one, PDLP on the unreduced program, the sweep of c over
2^-6..2^4 times the strength (as the frontier does it, a few points at a time, some started from those beside them; and
one by one, each started from the last), and a whole plan with accounted capacities, 2000 rounds of 2048. A cold solve
and a sweep begin with the graph, so that what a sweep builds once is in both. Every gap is certified by the same code,
a peer's too.
--highs: HiGHS in place of OR-Tools, by PDLP and by its interior point method without crossover, if highspy is
installed; not both, since OR-Tools loads a HiGHS of its own and a process can hold only one.
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
from hush.accounting.divergences import kl_target
from hush.weights import Program, Weights, solve_program, solve_several
from hush.weights.linear_program import certify

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


def time_highs(incidence: hush.Incidence, program: Program, tolerance: float, solver: str) -> dict[str, Any]:
    """HiGHS on the whole program, as its documentation has it: a tolerance, no crossover, all threads."""
    import highspy

    begin, cpu = time.perf_counter(), time.process_time()
    m, n = program.num_rows, program.num_columns
    matrix = incidence.to_scipy().T.tocsc()
    task = highspy.HighsLp()
    task.num_col_, task.num_row_ = n, m
    task.col_cost_, task.col_lower_, task.col_upper_ = -np.ones(n), np.zeros(n), program.upper_N
    task.row_lower_, task.row_upper_ = np.full(m, -highspy.kHighsInf), program.capacity_S
    task.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    task.a_matrix_.start_, task.a_matrix_.index_ = matrix.indptr, matrix.indices
    task.a_matrix_.value_ = np.ones(matrix.nnz)
    highs = highspy.Highs()
    settings = {"output_flag": False, "solver": solver, "run_crossover": "off", "threads": os.cpu_count() or 1}
    tolerances = {"pdlp_optimality_tolerance": tolerance, "ipm_optimality_tolerance": tolerance}
    for name, value in (settings | tolerances).items():
        highs.setOptionValue(name, value)
    highs.passModel(task)
    highs.run()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    found = highs.getSolution()
    proof = certify(program, np.asarray(found.col_value), -np.asarray(found.row_dual))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "certified_gap": proof.gap,
        "status": highs.modelStatusToString(highs.getModelStatus()),
        "highspy": version("highspy"),
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


def time_cold(incidence: hush.Incidence, capacity: np.ndarray, tolerance: float) -> tuple[Weights, dict[str, Any]]:
    """From the graph."""
    begin, cpu = time.perf_counter(), time.process_time()
    weights = solve_program(Program.of(incidence, capacity), tolerance=tolerance)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return weights, described(weights) | {"seconds": seconds, "cpu_seconds": cpu}


def time_sweep(
    incidence: hush.Incidence, shape: np.ndarray, strengths: list[float], tolerance: float
) -> dict[str, Any]:
    """From the graph, several points at a time: their seconds overlap, the total is by the clock."""
    begin, cpu = time.perf_counter(), time.process_time()
    program = Program.of(incidence, np.inf)
    found = list(solve_several(program, [c * shape for c in strengths], tolerance=tolerance))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    rows = [{"strength": c} | described(weights) for c, weights in zip(strengths, found, strict=True)]
    return {"seconds": seconds, "cpu_seconds": cpu, "rows": rows}


def time_chain(
    incidence: hush.Incidence, shape: np.ndarray, strengths: list[float], tolerance: float
) -> dict[str, Any]:
    """From the graph, one after another, each started from the last."""
    begin, cpu = time.perf_counter(), time.process_time()
    program, rows, last = Program.of(incidence, np.inf), [], None
    for c in strengths:
        last, row = time_hush(program.with_capacity(c * shape), tolerance, last)
        rows.append({"strength": c} | row)
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    parser.add_argument("--strength", type=float, default=2000.0)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--no-peer", action="store_true", help="leave OR-Tools PDLP out")
    parser.add_argument("--highs", action="store_true", help="HiGHS in place of OR-Tools; needs highspy")
    parser.add_argument("--no-sweep", action="store_true", help="leave the sweep out")
    parser.add_argument("--no-plan", action="store_true", help="leave the whole plan out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "weights.json")
    options = parser.parse_args()

    incidence, ceiling = instance(10_000 if options.small else 100_000, options.seed)
    shape = np.asarray(kl_target(PRIOR, ceiling))
    program = Program.of(incidence, options.strength * shape)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("hush", "numpy", "scipy", "numba", "ortools")},
        "size": {"examples": program.num_columns, "secrets": program.num_rows, "entries": program.num_entries},
        "tolerance": options.tolerance,
        "strength": options.strength,
    }
    solve_program(program, tolerance=0.5)  # compile, or load what was compiled before
    cold, result["cold"] = time_cold(incidence, program.capacity_S, options.tolerance)
    result["cold"]["peak_gb"] = peak_gigabytes()
    print(f"cold: {result['cold']}")
    nearby = program.with_capacity(1.01 * program.capacity_S)
    _, result["warm, 1 % more capacity"] = time_hush(nearby, options.tolerance, cold)
    print(f"warm: {result['warm, 1 % more capacity']}")
    for solver in ("pdlp", "ipx") if options.highs else ():
        result[f"highs {solver}"] = time_highs(incidence, program, options.tolerance, solver)
        print(f"highs {solver}: {result[f'highs {solver}']}", flush=True)
    if not options.no_peer and not options.highs:
        result["pdlp"] = time_pdlp(incidence, program, options.tolerance)
        print(f"pdlp: {result['pdlp']}")
        _, again = time_cold(
            incidence, program.capacity_S, options.tolerance
        )  # beside the peer, since a shared machine drifts
        result["cold again"] = again
        result["pdlp_over_cold"] = result["pdlp"]["seconds"] / min(result["cold"]["seconds"], again["seconds"])
        print(f"cold again: {again}\npdlp / cold: {result['pdlp_over_cold']:.1f}")
    if not options.no_sweep:
        strengths = [options.strength * 2.0**k for k in range(-6, 5)]
        for name, sweep in (("sweep", time_sweep), ("sweep, one by one", time_chain)):
            # A cold solve on either side of the sweep, since a shared machine drifts.
            _, before = time_cold(incidence, program.capacity_S, options.tolerance)
            found = sweep(incidence, shape, strengths, options.tolerance)
            _, after = time_cold(incidence, program.capacity_S, options.tolerance)
            found["cold_seconds"] = (before["seconds"] + after["seconds"]) / 2
            found["cold_cpu_seconds"] = (before["cpu_seconds"] + after["cpu_seconds"]) / 2
            found["over_cold"] = found["seconds"] / found["cold_seconds"]
            found["cpu_over_cold"] = found["cpu_seconds"] / found["cold_cpu_seconds"]
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
