"""A secret is in its own files and in those that imports and contributors add; more rules never remove a file."""

import pickle
import re
from datetime import date
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repositories import BO, CAI, commit, new_repository, plain_folder

from hush.errors import InvalidInput
from hush.protection import Protection
from hush.scan.causes import cause_of
from hush.scan.code import (
    Chunks,
    CodeSecret,
    CodeSecrets,
    CodeSettings,
    Contributors,
    Imports,
    Repository,
    code_corpus,
)
from hush.scan.code.imports import ImportGraph
from hush.scan.code.spread import Containment, containment, reached_by_imports

NAMES = [f"f{number}.py" for number in range(7)]
GRAPHS = st.frozensets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20)
SOME = st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3)
DEPTHS = st.integers(0, 8) | st.none()


def importers(edges: frozenset[tuple[str, str]]) -> dict[str, list[str]]:
    return {name: sorted(one for one, other in edges if other == name and one != name) for name in NAMES}


@given(GRAPHS, SOME, DEPTHS)
def test_files_are_reached_in_as_many_steps_as_the_shortest_path_has(
    edges: frozenset[tuple[str, str]], own: frozenset[str], depth: int | None
) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(NAMES)
    graph.add_edges_from((other, one) for one, other in edges)
    lengths = nx.multi_source_dijkstra_path_length(graph, set(own))
    expected = {name: steps for name, steps in lengths.items() if steps and (depth is None or steps <= depth)}
    reached = reached_by_imports(importers(edges), own, depth)
    assert {name: step.steps for name, step in reached.items()} == expected
    for name, step in reached.items():
        assert (name, step.imported) in edges
        assert step.last in own


def found(edges: frozenset[tuple[str, str]], paths: frozenset[str], depth: int | None) -> frozenset[str]:
    repository = Repository(
        root=Path(), files=tuple(NAMES), sizes=dict.fromkeys(NAMES, 1), passed_over={}, tracked=False
    )
    imports = {name: tuple(sorted(other for one, other in edges if one == name)) for name in NAMES}
    graph = ImportGraph(imports=imports, with_errors=(), files={})
    secret = CodeSecret(name="s", paths=tuple(sorted(paths)))
    return containment(repository, CodeSettings(secrets=(secret,), imports=Imports(depth=depth)), graph).files_of("s")


@given(GRAPHS, SOME, st.sampled_from(NAMES), DEPTHS)
def test_one_more_path_never_removes_a_file(
    edges: frozenset[tuple[str, str]], paths: frozenset[str], more: str, depth: int | None
) -> None:
    assert found(edges, paths, depth) <= found(edges, paths | {more}, depth)


@given(GRAPHS, SOME, st.integers(0, 6))
def test_more_depth_never_removes_a_file_and_none_is_like_no_limit(
    edges: frozenset[tuple[str, str]], paths: frozenset[str], depth: int
) -> None:
    assert found(edges, paths, depth) <= found(edges, paths, depth + 1) <= found(edges, paths, None)
    assert found(edges, paths, len(NAMES)) == found(edges, paths, None)
    assert found(edges, paths, 0) == paths


def test_a_chain_of_many_thousand_imports_ends_in_a_short_reason() -> None:
    names = [f"f{number:05}.py" for number in range(20_000)]
    repository = Repository(
        root=Path(), files=tuple(names), sizes=dict.fromkeys(names, 1), passed_over={}, tracked=False
    )
    imports = {one: (other,) for one, other in zip(names[1:], names, strict=False)}
    settings = CodeSettings(secrets=(CodeSecret(name="s", paths=("f00000.py",)),), imports=Imports(depth=None))
    contained = containment(repository, settings, ImportGraph(imports=imports, with_errors=(), files={}))
    assert len(contained.files_of("s")) == len(names)
    ((_, sentence),) = contained.reasons["f19999.py"]
    assert sentence.endswith("→ … (19999 steps)")
    assert len(sentence) < 300


OWNERS = "* @acme/all\n/billing/ @acme/billing\n/pay/ bo@acme.com\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = new_repository(
        tmp_path_factory.mktemp("shop"),
        {
            "billing/core.py": "PRICE = 1\n" * 100,
            "web/cart.py": "from billing.core import PRICE\n",
            "web/page.py": "import web.cart\n",
            "web/site.py": "import web.page\n",
            "pay/card.py": "1\n",
            "CODEOWNERS": OWNERS,
        },
    )
    commit(folder, {"web/style.py": "1\n", "billing/core.py": "PRICE = 2\n" * 100}, author=BO, day="2023-01-01")
    commit(folder, {"web/style.py": "2\n"}, author=CAI, day="2024-06-01")
    commit(folder, {"web/other.py": "2\n"}, author=CAI, day="2024-06-02")
    return Repository.open(folder)


def settings(secret: CodeSecret, **further: object) -> CodeSettings:
    return CodeSettings(secrets=(secret,), **further)  # pyright: ignore[reportArgumentType]


BILLING = CodeSecret(name="billing", paths=("billing/**",))


def why(contained: Containment, path: str) -> list[str]:
    return [sentence for _, sentence in contained.reasons.get(path, ())]


def test_paths_and_imports_give_reasons_with_the_way(shop: Repository) -> None:
    contained = containment(shop, settings(BILLING, imports=Imports(depth=2)))
    assert contained.reasons == {
        "billing/core.py": ((0, "file billing/core.py is under paths of billing"),),
        "web/cart.py": ((0, "file web/cart.py imports billing/core.py of billing (1 step)"),),
        "web/page.py": ((0, "file web/page.py imports billing/core.py of billing through web/cart.py (2 steps)"),),
    }
    assert contained.num_own_files == (1,)
    assert "web/site.py" in containment(shop, settings(BILLING, imports=Imports(depth=None))).reasons


def test_reasons_that_differ_in_the_file_alone_have_one_cause(shop: Repository) -> None:
    secret = CodeSecret(name="s", paths=("billing/**",), owners=("@acme/billing",), authors=("bo@acme.com",))
    contained = containment(shop, settings(secret, imports=Imports(depth=None), contributors=Contributors()))
    sentences = {sentence for pairs in contained.reasons.values() for _, sentence in pairs}
    assert {cause_of(sentence) for sentence in sentences} == {
        "is under paths of s",
        "is owned by @acme/billing, owner of s",
        "is by authors of s",
        "is by contributors of s",
        "imports billing/core.py of s",
    }


def test_owners_are_those_of_codeowners_by_name_or_by_group(shop: Repository) -> None:
    owned = containment(shop, settings(CodeSecret(name="s", owners=("@ACME/billing",))))
    assert why(owned, "billing/core.py") == ["file billing/core.py is owned by @acme/billing, owner of s"]
    assert owned.files_of("s") == {"billing/core.py"}
    group = {"payers": ("bo@acme.com",)}
    by_group = containment(shop, settings(CodeSecret(name="s", owners=("payers",)), groups=group))
    assert by_group.files_of("s") == {"pay/card.py"}


@pytest.mark.parametrize(
    ("authors", "rule", "expected"),
    [
        (("bo@acme.com",), Contributors(), {"billing/core.py", "web/style.py"}),
        (("Bo",), Contributors(), {"billing/core.py", "web/style.py"}),
        (("BO@acme.com",), Contributors(share=0.5), {"billing/core.py", "web/style.py"}),
        (("bo@acme.com",), Contributors(share=0.51), set()),
        (("late",), Contributors(), {"billing/core.py", "web/style.py", "web/other.py"}),
        (("late",), Contributors(share=0.6), {"web/style.py", "web/other.py"}),
        (("late",), Contributors(since=date(2024, 1, 1)), {"web/style.py", "web/other.py"}),
        (("bo@acme.com",), Contributors(since=date(2024, 1, 1)), set()),
        (("bo@acme.com",), Contributors(share=0.5, of="lines"), {"billing/core.py", "web/style.py"}),
    ],
)
def test_authors_taken_together_need_the_share_since_the_day(
    shop: Repository, authors: tuple[str, ...], rule: Contributors, expected: set[str]
) -> None:
    groups = {"late": ("bo@acme.com", "cai@acme.com")}
    secret = CodeSecret(name="s", authors=authors)
    assert containment(shop, settings(secret, authored=rule, groups=groups)).files_of("s") == expected


def test_contributors_bring_in_the_files_that_they_changed(shop: Repository) -> None:
    everybody = containment(shop, settings(BILLING, contributors=Contributors()))
    assert everybody.files_of("billing") == set(shop.files) - {"web/other.py"}, "Cai never touched billing"
    (sentence,) = why(everybody, "web/style.py")
    assert sentence == "file web/style.py is by contributors of billing: 50% of its commits by bo@acme.com"
    recent = containment(shop, settings(BILLING, contributors=Contributors(since=date(2024, 1, 1))))
    assert "web/style.py" not in recent.files_of("billing"), "only Ana changed billing since, and not this file"
    most = containment(shop, settings(BILLING, contributors=Contributors(share=0.6)))
    assert most.files_of("billing") == {"billing/core.py"}, "nobody made as much of it"


def test_a_group_spreads_from_a_contributor_to_all_its_members(shop: Repository) -> None:
    groups = {"team": ("bo@acme.com", "cai@acme.com")}
    alone = containment(shop, settings(BILLING, contributors=Contributors(), groups=groups))
    together = containment(shop, settings(BILLING, contributors=Contributors(groups=True), groups=groups))
    assert together.files_of("billing") - alone.files_of("billing") == {"web/other.py"}


def test_entries_that_mean_nothing_here_are_told(shop: Repository) -> None:
    secret = CodeSecret(name="s", paths=("biling/**", "web/**"), owners=("@acme/none",), authors=("dee@acme.com",))
    assert containment(shop, settings(secret)).unmatched == (
        "pattern 1 of the paths of s matches no file",
        "owner @acme/none of s is not in CODEOWNERS",
        "author dee@acme.com of s has no commit",
    )


def test_a_secret_without_a_file_is_told_even_if_each_entry_matches(shop: Repository) -> None:
    cancelled = CodeSecret(name="s", paths=("web/**", "!web/**"))
    assert containment(shop, settings(cancelled)).unmatched == ("secret s has no file of its own",)


def test_a_member_of_a_group_without_a_commit_is_told(shop: Repository) -> None:
    secret = CodeSecret(name="s", authors=("team",))
    groups = {"team": ("bo@acme.com", "cia@acme.com", "@acme/web")}
    told = "member 2 of the group team, authors of s, has no commit"
    assert containment(shop, settings(secret, groups=groups)).unmatched == (told,)


def test_an_owner_of_no_file_is_told(tmp_path: Path) -> None:
    files = {
        "CODEOWNERS": "/biling/ @acme/billing\n/web/ @acme/web\n",
        "billing/a.py": "x = 1\n",
        "web/a.py": "x = 1\n",
    }
    secret = CodeSecret(name="s", owners=("@acme/billing", "@acme/web"))
    told = "owner @acme/billing of s owns no file by CODEOWNERS"
    assert containment(plain_folder(tmp_path, files), settings(secret)).unmatched == (told,)


UNREAD = {
    "big/a.py": "x = 1  # " + "y" * 2000,
    "use.py": "from big.a import x",
    "big/a.js": "//" + "y" * 2000,
    "use.js": "require('./big/a')",
    "big/A.java": "package big; //" + "y" * 2000,
    "Use.java": "import big.A;",
    "go.mod": "module m",
    "big/a.go": "package big //" + "y" * 2000,
    "use/use.go": 'package use\nimport "m/big"',
    "big/a.rs": "//" + "y" * 2000,
    "big/mod.rs": "mod a;",
    "use.rs": "mod big; use big::a::x;",
    "big/a.h": "//" + "y" * 2000,
    "use.c": '#include "big/a.h"',
}


def test_a_secret_file_that_is_no_text_still_spreads_to_those_who_import_it(tmp_path: Path) -> None:
    plain_folder(tmp_path, {**UNREAD, "big/b.py": b"\xff", "use_b.py": "import big.b"})
    repository = Repository.open(tmp_path, use_git=False, max_bytes=1000)
    assert set(repository.passed_over) == {"not UTF-8", "too large"}
    secret = CodeSecret(name="s", paths=("big/?.*",))
    contained = containment(repository, settings(secret, imports=Imports(depth=1)))
    users = {path for path in repository.files if path.startswith(("use", "Use"))} | {"big/mod.rs"}
    unread = set(sum(repository.passed_over.values(), ()))
    assert contained.files_of("s") == users | unread
    assert set(contained.with_errors) == unread


def test_authors_of_a_group_count_together_if_the_rule_says_so(shop: Repository) -> None:
    groups = {"team": ("bo@acme.com", "cai@acme.com")}
    secret = CodeSecret(name="s", authors=("bo@acme.com",))
    contained = containment(shop, settings(secret, authored=Contributors(groups=True), groups=groups))
    assert contained.files_of("s") == {"billing/core.py", "web/style.py", "web/other.py"}


def test_history_rules_need_a_history_and_others_do_not(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, {"billing/a.py": "1"})
    assert containment(repository, settings(BILLING)).files_of("billing") == {"billing/a.py"}
    with pytest.raises(InvalidInput, match="no git history"):
        containment(repository, settings(BILLING, contributors=Contributors()))


def test_each_chunk_inherits_what_its_file_contains_and_every_pair_has_a_reason(shop: Repository) -> None:
    promise = Protection(1e-6, 1e-2)
    secrets = (
        CodeSecret(name="billing", paths=("billing/",), protection=promise),
        CodeSecret(name="idle", paths=("no",)),
    )
    finder = CodeSecrets.of(shop, CodeSettings(secrets=secrets, imports=Imports(depth=1)))
    assert finder.columns == ("path",)
    assert [(one.key, one.name, one.protection) for one in finder.declared] == [
        ("billing", "billing", promise),
        ("idle", "idle", None),
    ]
    corpus = code_corpus(shop, Chunks(lines=30))
    pairs: set[tuple[str, str]] = set()
    for shard in corpus.shards():
        for block in shard.blocks(("path", "id")):
            hits = pickle.loads(pickle.dumps(finder)).find(block)
            assert np.all(hits.begin_H == -1)
            ids = block.columns["id"].to_pylist()
            pairs |= {(ids[row], hits.keys[key]) for row, key in zip(hits.example_H, hits.key_H, strict=True)}
            for row, reason in zip(hits.example_H, hits.reason_H, strict=True):
                path = re.escape(block.columns["path"].to_pylist()[row])
                assert re.match(f"file {path} (is under|imports)", hits.reasons[reason])
    cut = ("L1-L30", "L31-L60", "L61-L90", "L91-L100")
    assert pairs == {(f"billing/core.py#{place}", "billing") for place in cut} | {("web/cart.py#L1-L1", "billing")}


def test_chunks_of_another_repository_are_refused(shop: Repository, tmp_path: Path) -> None:
    finder = CodeSecrets.of(shop, settings(BILLING))
    (shard,) = code_corpus(plain_folder(tmp_path, {"else.py": "1"})).shards()
    (block,) = shard.blocks(("path",))
    with pytest.raises(InvalidInput, match=r"else\.py.*same repository"):
        finder.find(block)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: CodeSecret(name=" ", paths=("a",)), "empty name"),
        (lambda: CodeSecret(name="s"), "has no files"),
        (lambda: CodeSecret(name="s", paths=("",)), "empty path"),
        (lambda: Imports(depth=-1), "is negative"),
        (lambda: Contributors(share=float("nan")), "from 0 to 1"),
        (
            lambda: Contributors(of="hours"),  # pyright: ignore[reportArgumentType]
            "'commits' or 'lines'",
        ),
        (lambda: CodeSettings(secrets=(BILLING, BILLING)), "two secrets are called billing"),
    ],
)
def test_rules_that_mean_nothing_are_refused(wrong: object, said: str) -> None:
    assert callable(wrong)
    with pytest.raises(InvalidInput, match=said):
        wrong()
