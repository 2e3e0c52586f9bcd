"""``hush train`` in two processes: the model of one process, one voice, and one end for all."""

import atexit
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as hf
import two_commands
import typer
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from typer.testing import CliRunner, Result

import hush
from hush.cli import app, messages
from hush.cli.interrupt import Interrupt
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.ledger import Ledger
from hush.plan.make import choose_held_out, make_plan_holding_out
from hush.slots import save_spans, slots_of_spans
from hush.train import launch, noise, private_training
from hush.train.noise import Noise
from hush.train.run_folder import RoundLines, RunLog

EXAMPLES, ROUNDS, STOP, SEED = 40, 5, 2, 11
TOLERANCE = 2e-6


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What two processes came to, by rank."""

    codes: list[int]
    stdout: list[str]
    stderr: list[str]

    @property
    def errors(self) -> list[str]:
        """What they refused, each message as often as it was said."""
        return [line for text in self.stderr for line in text.splitlines() if line.startswith("Error:")]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """All scenarios, and the folder in which they ran."""

    root: Path
    outcomes: dict[str, Outcome]


def alone(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def train(
    root: Path, output: str, *more: object, model: str = "model", data: str = "data.txt", plan: str = "plan"
) -> list[str]:
    files = {"--model": root / model, "--data": root / data, "--key": root / "my.key", "--output": root / output}
    options = [part for pair in files.items() for part in pair]
    seed = ["--insecure-seed", SEED, "--micro-batch", 3]
    return [str(part) for part in ("train", root / plan, *options, *seed, *more)]


def run(root: Path, output: str, *, shard: bool = False, ledger: str = "ledger") -> list[str]:
    """``hush run`` with a ledger, of a small model, without dropout; the same key and data as all else here."""
    config = root / f"{output}.yaml"
    content: dict[str, Any] = {
        "data": {"source": "data.txt"},
        "promises": {"prior": 1e-6, "ceiling": 1e-2},
        "rules": [{"name": "codes", "find": "patterns", "patterns": [r"note 2\d"]}],
        "plan": {"batch_size": 4, "rounds": ROUNDS, "hold_out": 0.2},
        "model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 32}},
        "training": {"evaluate_every": 1, "device": "cpu", "shard": shard, "micro_batch": 3},
        "releases": {"ledger": ledger, "series": {"count": 2}},
        "audit": None,
        "report": {"frontier": False, "methods": False},
    }
    config.write_text(json.dumps(content))
    return ["run", str(config), "--output", str(root / output), "--quiet"]


def prepare(root: Path) -> None:
    """A small model without dropout, which no two processes would share; data, key and plans."""
    torch.manual_seed(0)
    words = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token="<pad>", eos_token="<end>", model_max_length=64
    )
    shape: dict[str, Any] = {"n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": len(words)}
    still: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **still, **ends)).save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    texts = [f"note {row}: " + "tide " * (row % 9) for row in range(EXAMPLES)]
    (root / "data.txt").write_text("".join(f"{text}\n" for text in texts))
    (root / "edited.txt").write_text("".join(f"{text}\n" for text in [*texts[:-1], "another"]))
    incidence = hush.Incidence.from_pairs([2, 9, 30], [0, 0, 0], num_examples=EXAMPLES, num_secrets=1)
    settings: Any = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 9, "rounds": ROUNDS}
    fingerprint = DataKey.create(root / "my.key").fingerprint_rows(texts)
    held = choose_held_out(incidence, 0.2)
    make_plan_holding_out(incidence, held, **settings, data_fingerprint=fingerprint).save(root / "plan")
    places: Any = {"example": [2, 9, 30], "begin": [5, 5, 5], "end": [6, 6, 7], "rule": [0, 0, 0], "secret": [0, 0, 0]}
    spans = slots_of_spans(incidence, ["numbers"], **places)
    for name in ("public", "owner"):
        (root / "scan" / name).mkdir(parents=True)
    save_spans(spans, root / "scan")
    rows = DataKey.load(root / "my.key").fingerprint_rows(spans.public_rows(incidence, texts))
    settings |= {"batch_size": 2, "slots": spans.slots, "skeleton_fingerprint": rows, "data_fingerprint": fingerprint}
    make_plan_holding_out(incidence, held, **settings).save(root / "plan-slots")
    settings = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 9, "rounds": ROUNDS}
    hush.make_plan(incidence, **settings).save(root / "plan-without-data")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every scenario in two processes; "resumed" goes on with what one process began."""
    root = tmp_path_factory.mktemp("ranks")
    prepare(root)
    with pytest.MonkeyPatch.context() as patch:
        rounds = iter(range(1, ROUNDS))
        patch.setattr(Interrupt, "__call__", lambda self: next(rounds) == STOP)
        assert alone(*train(root, "resumed", *PUBLIC)).exit_code == 130
    unchecked = ["train", str(root / "plan-without-data"), "--model", str(root / "model"), "--unchecked-data"]
    unchecked += ["--output", str(root / "never"), "--data"]
    edited = train(root, "never", data="edited.txt")
    given: dict[str, list[list[str]]] = {
        "replicas": [train(root, "replicas", *PUBLIC, "--json")] * 2,
        "resumed": [train(root, "resumed", *PUBLIC)] * 2,
        "shards": [train(root, "shards", *PUBLIC, "--shard")] * 2,
        "adapters": [train(root, "adapters", *LORA, "--shard")] * 2,
        "slots": [train(root, "slots", *slots(root), plan="plan-slots")] * 2,
        "slots in shards": [train(root, "slots in shards", *slots(root), "--shard", plan="plan-slots")] * 2,
        "both refuse": [edited] * 2,
        "the first refuses": [edited, train(root, "never")],
        "the second refuses": [train(root, "never"), edited],
        "other settings": [train(root, "never"), train(root, "never", "--learning-rate", 1)],
        "other tokens": [[*unchecked, str(root / name)] for name in ("data.txt", "edited.txt")],
        "one device": [train(root, "never", "--device", "cpu:0")] * 2,
        "killed": [train(root, "killed", "--save-every", 1)] * 2,
        "terminated": [train(root, "terminated", *PUBLIC)] * 2,
        "terminated, then on": [train(root, "terminated", *PUBLIC)] * 2,
        "one terminated": [train(root, "one-terminated")] * 2,
    }
    unseen = run(root, "unseen", ledger="unseen-ledger")
    given |= {
        "run": [run(root, "run")] * 2,
        "run, again": [run(root, "run")] * 2,
        "run in shards": [run(root, "run in shards", shard=True, ledger="ledger of shards")] * 2,
        "run, killed": [run(root, "run, killed", ledger="ledger of killed")] * 2,
        "run, then on": [run(root, "run, killed", ledger="ledger of killed")] * 2,
        "run elsewhere": [unseen, [*unseen[:3], str(root / "not there"), "--quiet"]],
        "run refused": [[*run(root, "refused"), "--from", "nothing"]] * 2,
    }
    scenarios = {name: {"commands": commands, "port": free_port()} for name, commands in given.items()}
    scenarios["killed"]["killed"] = 1
    scenarios["terminated"]["terminated"] = STOP
    scenarios["run"]["known_entropy"] = scenarios["run, then on"]["known_entropy"] = True
    scenarios["run, killed"] |= {"killed": 1, "known_entropy": True}
    scenarios["one terminated"] |= {"terminated": STOP, "which": 1}
    (root / "scenarios.json").write_text(json.dumps(scenarios))
    program = [sys.executable, str(Path(__file__).with_name("two_commands.py"))]
    processes = [subprocess.Popen([*program, str(rank), str(root)], env=environment()) for rank in range(2)]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [json.loads((root / f"codes.{rank}.json").read_text()) for rank in range(2)]
    outcomes = {
        name: Outcome(
            codes=[by_name[name] for by_name in codes],
            stdout=[(root / "said" / name / f"stdout.{rank}").read_text() for rank in range(2)],
            stderr=[(root / "said" / name / f"stderr.{rank}").read_text() for rank in range(2)],
        )
        for name in scenarios
    }
    return Ran(root=root, outcomes=outcomes)


PUBLIC = ["--public-weight", "0.5", "--public-batch", "4", "--average", "0.7"]
SLOTS_ALONE: list[str] = []  # slots() instead, which needs a folder
LORA = ["--lora", "--lora-rank", "2", "--lora-down", "random", "--bf16", "--gradient-checkpointing"]


def slots(root: Path) -> list[object]:
    return ["--scan", root / "scan", "--part", "difference", "--trainable", "norms", "--trainable", "*.wte.weight"]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def released(folder: Path) -> dict[str, Tensor]:
    return load_file(next((folder / "release" / "model").glob("*.safetensors")))


def assert_close(one: Path, other: Path) -> None:
    first, second = released(one), released(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=TOLERANCE)
    names = [sorted(path.name for path in (folder / "release").rglob("*")) for folder in (one, other)]
    assert names[0] == names[1]
    scores = [RoundLines.read(folder / "release" / "evaluations.jsonl") for folder in (one, other)]
    assert [row["round"] for row in scores[0]] == list(range(ROUNDS + 1))
    for mine, theirs in zip(*scores, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)
    for path in (one / "release" / "model").glob("*.json"):
        assert path.read_text() == (other / "release" / "model" / path.name).read_text(), path.name


@pytest.mark.parametrize("scenario", ["replicas", "resumed"])
def test_replicas_release_the_model_of_one_process(ran: Ran, tmp_path: Path, scenario: str) -> None:
    outcome = ran.outcomes[scenario]
    assert outcome.codes == [0, 0], outcome.stderr
    assert alone(*train(ran.root, str(tmp_path / "one"), *PUBLIC)).exit_code == 0
    assert_close(ran.root / scenario, tmp_path / "one")
    two, one = (RunLog.read(folder / "owner" / "rounds.jsonl") for folder in (ran.root / scenario, tmp_path / "one"))
    assert [record.examples for record in two] == [record.examples for record in one]
    assert [record.loss for record in two] == pytest.approx([record.loss for record in one], rel=1e-4)


def test_replicas_that_train_with_slots_release_the_model_of_one_process(ran: Ran, tmp_path: Path) -> None:
    assert ran.outcomes["slots"].codes == [0, 0], ran.outcomes["slots"].stderr
    assert alone(*train(ran.root, str(tmp_path / "one"), *slots(ran.root), plan="plan-slots")).exit_code == 0
    assert_close(ran.root / "slots", tmp_path / "one")


@pytest.mark.parametrize(
    ("scenario", "options"), [("shards", PUBLIC), ("adapters", LORA), ("slots in shards", SLOTS_ALONE)]
)
def test_shards_release_the_model_of_one_process(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, options: list[str]
) -> None:
    """Each process adds noise of its own to its shard; here the one process is given the two noises, shard by shard."""
    assert ran.outcomes[scenario].codes == [0, 0], ran.outcomes[scenario].stderr
    add = Noise.add_

    def add_by_shard(self: Noise, sums: dict[str, Tensor], *, scale: float, round: int, rank: int) -> None:
        for shard in range(2):
            add(self, {name: v.chunk(2)[shard] for name, v in sums.items()}, scale=scale, round=round, rank=shard)

    monkeypatch.setattr(Noise, "add_", add_by_shard)
    of_plan = {"plan": "plan-slots"} if options is SLOTS_ALONE else {}
    more = slots(ran.root) if options is SLOTS_ALONE else options
    assert alone(*train(ran.root, str(tmp_path / "one"), *more, **of_plan)).exit_code == 0
    assert_close(ran.root / scenario, tmp_path / "one")


def test_only_the_first_process_speaks(ran: Ran) -> None:
    for name in ("replicas", "resumed", "shards", "adapters"):
        outcome = ran.outcomes[name]
        assert outcome.stderr[0].startswith("Training ")
        assert (outcome.stdout[1], outcome.stderr[1]) == ("", "")
    assert json.loads(ran.outcomes["replicas"].stdout[0])["rounds"] == ROUNDS
    assert f"for {ROUNDS} rounds ({STOP} of them in an earlier session)." in ran.outcomes["resumed"].stdout[0]


REFUSALS = {
    "both refuse": "is not the data that the plan was made for",
    "the first refuses": "is not the data that the plan was made for",
    "the second refuses": "is not the data that the plan was made for",
    "other settings": "process 1 has other settings than the first one; give all of them the same",
    "other tokens": "process 1 has other tokens than the first one; give all of them the same",
    "one device": "it is one device, but several processes were started",
}


@pytest.mark.parametrize("scenario", REFUSALS)
def test_whoever_refuses_all_end_with_2_and_one_message(ran: Ran, scenario: str) -> None:
    outcome = ran.outcomes[scenario]
    assert outcome.codes == [2, 2], outcome.stderr
    assert len(outcome.errors) == 1, outcome.stderr
    assert REFUSALS[scenario] in outcome.errors[0]
    assert not any("Traceback" in text for text in outcome.stderr)
    assert not (ran.root / "never").exists()


def released_run(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "release" / "model" / "model.safetensors")


@pytest.mark.parametrize("scenario", ["run", "run, killed"])
def test_hush_run_in_two_processes_releases_the_model_of_one(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str
) -> None:
    """The same seeds and keys, since a run has no insecure one; also after one of the processes was killed."""
    if scenario == "run, killed":
        assert ran.outcomes[scenario].codes == [1, -9], ran.outcomes[scenario].stderr
        assert len(ran.outcomes[scenario].errors) == 1
        assert ran.outcomes["run, then on"].codes == [0, 0], ran.outcomes["run, then on"].stderr
    else:
        assert ran.outcomes[scenario].codes == [0, 0], ran.outcomes[scenario].stderr
    for module in (noise, private_training):
        monkeypatch.setattr(module, "os", two_commands.KnownEntropy())
    (tmp_path / "data.txt").write_text((ran.root / "data.txt").read_text())
    done = alone(*run(tmp_path, "one"))
    assert done.exit_code == 0, done.stderr
    one, two = (folder / "release" for folder in (tmp_path / "one", ran.root / scenario))
    assert sorted(path.name for path in two.rglob("*")) == sorted(path.name for path in one.rglob("*"))
    for name, value in released_run(tmp_path / "one").items():
        torch.testing.assert_close(value, released_run(ran.root / scenario)[name], rtol=0, atol=TOLERANCE)
    assert hush.verify(two).passed


def test_the_ledger_of_a_run_in_two_processes_has_one_entry(ran: Ran) -> None:
    for name in ("ledger", "ledger of shards", "ledger of killed"):
        (entry,) = Ledger.load(ran.root / name).entries
        assert (entry.state, entry.rounds) == ("released", True)


def test_a_run_in_shards_is_finished_and_verifies(ran: Ran) -> None:
    assert ran.outcomes["run in shards"].codes == [0, 0], ran.outcomes["run in shards"].stderr
    assert hush.verify(ran.root / "run in shards" / "release").passed


def test_a_finished_run_calls_no_other_process(ran: Ran) -> None:
    assert ran.outcomes["run, again"].codes == [0, 0], ran.outcomes["run, again"].stderr
    assert ran.outcomes["run, again"].stderr[1] == ""


def test_a_process_that_does_not_see_the_run_is_refused_and_ends_all(ran: Ran) -> None:
    outcome = ran.outcomes["run elsewhere"]
    assert outcome.codes == [2, 2], outcome.stderr
    assert len(outcome.errors) == 1
    assert "holds no run here, but the first process has planned one there" in outcome.errors[0]
    assert ran.outcomes["run refused"].codes == [2, 2]


ERRORS = {
    "refused": InvalidInput("pass something else"),
    "no file": FileNotFoundError(2, "No such file or directory", "a file"),
    "no memory": MemoryError(),
    "no memory on the GPU": torch.OutOfMemoryError("CUDA out of memory"),
    "a bug": ZeroDivisionError(),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_who_keeps_silent_ends_with_the_code_of_who_speaks(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first to fail tells the others is the code with which the command line ends it."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)
    assert launch._Report(store, 1, 2).claim(error) is None

    def fail() -> None:
        raise error

    failing = typer.Typer()
    failing.command()(messages.command(fail))
    assert int(store.get(launch._CODE)) == CliRunner().invoke(failing, []).exit_code


def test_a_process_that_is_killed_ends_the_others(ran: Ran) -> None:
    outcome = ran.outcomes["killed"]
    assert outcome.codes == [1, -9], outcome.stderr
    assert len(outcome.errors) == 1, outcome.stderr
    assert "the connection to another process was lost" in outcome.errors[0]
    assert "The same command resumes from the last saved state" in outcome.errors[0]
    assert "Traceback" not in outcome.stderr[0]


def test_sigterm_saves_the_round_of_all_processes_and_the_same_command_goes_on(ran: Ran) -> None:
    stopped, done = ran.outcomes["terminated"], ran.outcomes["terminated, then on"]
    assert stopped.codes == [143, 143], stopped.stderr
    assert f"Stopped after round {STOP} of {ROUNDS}, which is saved" in stopped.stderr[0]
    assert "Stopped" not in stopped.stderr[1]
    assert done.codes == [0, 0], done.stderr
    assert f"({STOP} of them in an earlier session)" in done.stdout[0]
    assert_close(ran.root / "terminated", ran.root / "replicas")


def test_a_sigterm_that_one_process_hears_ends_all_of_them_alike(ran: Ran) -> None:
    stopped = ran.outcomes["one terminated"]
    assert stopped.codes == [143, 143], stopped.stderr
    assert f"Stopped after round {STOP} of {ROUNDS}, which is saved" in stopped.stderr[0]


# Python runs this first. It notes which threads there are at the end, and whether the interpreter was taken down.
WATCHED_END = """
import atexit, os
from pathlib import Path

seen = Path(os.environ["SEEN"])

class Watch:
    def __del__(self, taken_down=os.open(seen, os.O_RDONLY), touch=os.open, flags=os.O_CREAT | os.O_WRONLY):
        touch("taken-down." + os.environ["RANK"], flags, dir_fd=taken_down)

def write_threads():
    names = [(thread / "comm").read_text() for thread in Path("/proc/self/task").iterdir()]
    (seen / ("threads." + os.environ["RANK"])).write_text("".join(names))

if "RANK" in os.environ:
    watch = Watch()
    atexit.register(write_threads)
"""


@pytest.mark.parametrize(("scenario", "options"), [("replicas", []), ("shards", ["--shard"])])
def test_torchrun_starts_it_and_no_interpreter_ends_before_the_threads_of_its_connection(
    ran: Ran, tmp_path: Path, scenario: str, options: list[str]
) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "sitecustomize.py").write_text(WATCHED_END)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hush"]
    arguments = train(ran.root, str(tmp_path / "run"), *PUBLIC, "--json", *options)
    watched = environment() | {"PYTHONPATH": str(tmp_path), "SEEN": str(tmp_path / "seen")}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=watched, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == ROUNDS
    assert_close(tmp_path / "run", ran.root / scenario)
    for rank in range(2):
        threads = (tmp_path / "seen" / f"threads.{rank}").read_text()
        taken_down = (tmp_path / "seen" / f"taken-down.{rank}").exists()
        assert not (taken_down and "gloo" in threads), (rank, threads)


@pytest.mark.slow
def test_shards_learn_what_is_public_first_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process does, with the whole model; by default shards leave it out."""
    prepare(tmp_path)
    first = ["--public-first", "--first-rate", "1e-3", "--first-epochs", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hush"]
    arguments = [*command, *train(tmp_path, "two", *first, "--shard", "--json")]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    add = Noise.add_

    def add_by_shard(self: Noise, sums: dict[str, Tensor], *, scale: float, round: int, rank: int) -> None:
        for shard in range(2):
            add(self, {name: v.chunk(2)[shard] for name, v in sums.items()}, scale=scale, round=round, rank=shard)

    monkeypatch.setattr(Noise, "add_", add_by_shard)
    assert alone(*train(tmp_path, "one", *first)).exit_code == 0
    assert_close(tmp_path / "two", tmp_path / "one")
    for folder in ("one", "two"):
        certificate = json.loads((tmp_path / folder / "release" / "certificate.json").read_text())
        assert certificate["public_part"]["examples"] > 0


def test_processes_that_cannot_meet_are_refused(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    result = alone(*train(ran.root, "never"))
    assert result.exit_code == 2
    assert "cannot be connected" in result.stderr
