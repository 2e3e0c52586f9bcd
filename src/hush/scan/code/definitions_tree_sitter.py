"""Which definitions and lines of a file use a secret, for JavaScript, TypeScript, Java, Go, Rust, C and C++.

As definitions.py, with the syntax trees of tree-sitter and simpler means: names are compared as they are written, in
the whole file; only names that an assignment inside a function binds are followed no farther than that function.
Attributes count as names. An import of the secret with a star, a dot or a glob hides everything but the imports. A file
with syntax errors is not read here; hiding.py hides it as a whole.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, final

from hush.scan.code.definitions import Words, complement
from hush.scan.code.imports.parsing import tree_of
from hush.scan.code.imports.rust import Names, used_paths

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Binding", "SyntaxFile", "grammar_of"]


_C_ENDINGS, _HEADER = (".c",), re.compile(r"\.(?:h|H|hh|hpp|hxx|h\+\+|inc|inl|ipp|tcc|tpp|txx|cuh)$")
_WORD = re.compile(r"[\w$]+")
_SPACE = re.compile(r"\s")
_IMPORTS = frozenset((
    *("import_statement", "import_declaration", "use_declaration", "extern_crate_declaration", "preproc_include"),
    *("package_declaration", "package_clause"),
))  # fmt: skip
_CONTAINERS = frozenset((
    *("class_declaration", "abstract_class_declaration", "class", "interface_declaration", "enum_declaration"),
    *("record_declaration", "impl_item", "trait_item", "mod_item", "namespace_definition", "linkage_specification"),
    *("class_specifier", "struct_specifier", "internal_module", "module", "export_statement", "ambient_declaration"),
    *("preproc_if", "preproc_ifdef", "preproc_elif", "preproc_else", "annotation_type_declaration"),
))  # fmt: skip
_ASSIGNMENTS = frozenset((
    *("variable_declarator", "assignment_expression", "augmented_assignment_expression", "short_var_declaration"),
    *("var_spec", "const_spec", "assignment_statement", "let_declaration", "init_declarator", "const_item"),
    *("static_item", "type_item", "type_alias_declaration", "alias_declaration", "type_definition", "preproc_def"),
    *("preproc_function_def", "public_field_definition", "field_definition", "declaration", "field_declaration"),
    *("local_variable_declaration", "range_clause", "for_in_statement", "enhanced_for_statement", "for_expression"),
    *("type_spec", "type_alias", "compound_assignment_expr", "parameter", "required_parameter", "formal_parameter"),
    *("parameter_declaration", "optional_parameter", "catch_formal_parameter", "resource"),
    *("namespace_alias_definition",),
))  # fmt: skip
_LEFT = ("name", "left", "pattern", "declarator", "property")
_RIGHT = ("value", "right", "type")
_MEMBERS = frozenset((
    *("member_expression", "field_expression", "selector_expression", "field_access", "subscript_expression"),
    *("index_expression", "array_access", "scoped_identifier", "qualified_identifier"),
))  # fmt: skip
_FUNCTION = re.compile(r"function|method|constructor|lambda|closure|arrow|func_literal")
_STATEMENT = re.compile(
    r"(?:statement|declaration|definition|item|specifier|_spec|_def|expression_case|attribute_item)$|^preproc"
)
_BLOCKS = ("body", "consequence", "alternative")


def grammar_of(path: str) -> str | None:
    """The grammar for a file by its ending; None if this module does not read its language."""
    for endings, grammar in (
        ((".ts", ".mts", ".cts"), "typescript"),
        ((".tsx",), "tsx"),
        ((".js", ".jsx", ".mjs", ".cjs"), "javascript"),
        ((".java",), "java"),
        ((".go",), "go"),
        ((".rs",), "rust"),
        (_C_ENDINGS, "c"),
    ):
        if path.endswith(endings):
            return grammar
    cpp = (".C", ".cc", ".cpp", ".cxx", ".c++", ".cu")
    return "cpp" if path.endswith(cpp) or _HEADER.search(path) else None


class Binding(NamedTuple):
    """An import: how it names what it imports, and the names that it binds.

    is_all: it binds whatever there is. declared: it binds the names that the imported files declare. passes_on: who
    imports this file can use what it imports.
    """

    reference: str | Names
    names: frozenset[str]
    is_all: bool = False
    declared: bool = False
    passes_on: bool = False


@final
@dataclass(frozen=True, slots=True)
class _Leaf:
    begin: int
    end: int
    text: str = field(repr=False)
    is_string: bool
    is_comment: bool
    in_import: bool


@final
@dataclass(frozen=True, eq=False, repr=False)
class SyntaxFile:
    """One file and its syntax tree."""

    path: str
    grammar: str
    text: str
    root: "Node"

    @classmethod
    def read(cls, path: str, text: str) -> Self | None:
        """The file; None if it has syntax errors."""
        grammar = grammar_of(path)
        if grammar is None:
            return None
        root = tree_of(grammar, text if text.endswith("\n") else f"{text}\n")
        return None if root.has_error else cls(path, grammar, text, root)

    # What it imports and declares

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Every import of the file, in order."""
        reader = {"java": self._java, "go": self._go, "rust": self._rust, "c": self._include, "cpp": self._include}
        read = reader.get(self.grammar, self._javascript)
        return tuple(binding for node in _walk(self.root) for binding in read(node))

    def _javascript(self, node: "Node") -> Iterator[Binding]:
        if node.type in ("import_statement", "export_statement"):
            source = node.child_by_field_name("source")
            if source is None:
                source = next((each.child_by_field_name("source") for each in node.named_children
                               if each.type == "import_require_clause"), None)  # fmt: skip
            if source is not None:
                clauses = [
                    each for each in node.named_children if each.type in ("import_clause", "import_require_clause")
                ]
                names = frozenset(name for clause in clauses for name in _bound_names(clause))
                yield Binding(_text(source)[1:-1], names, passes_on=node.type == "export_statement")
        elif node.type == "call_expression":
            called, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if called is None or given is None or _text(called) not in ("require", "import", "require.resolve"):
                return
            around = node.parent
            while around is not None and around.type in ("await_expression", "parenthesized_expression", *_MEMBERS):
                around = around.parent
            pattern = around.child_by_field_name("name") if around and around.type == "variable_declarator" else None
            names = frozenset(_identifiers(pattern)) if pattern is not None else frozenset[str]()
            for literal in given.named_children:
                if literal.type in ("string", "template_string"):
                    yield Binding(_text(literal)[1:-1], names)

    def _java(self, node: "Node") -> Iterator[Binding]:
        if node.type == "import_declaration":
            text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", _text(node), flags=re.DOTALL)
            parts = tuple(word for word in re.findall(r"[\w$]+|\*", text) if word not in ("import", "static"))
            has_star, is_static = parts[-1:] == ("*",), re.search(r"\bstatic\b", text) is not None
            names = frozenset[str]() if has_star else frozenset(parts[-1:])
            yield Binding(parts, names, is_all=has_star and is_static, declared=has_star)

    def _go(self, node: "Node") -> Iterator[Binding]:
        if node.type == "import_spec":
            path, alias = node.child_by_field_name("path"), node.child_by_field_name("name")
            literal = "" if path is None else _text(path)[1:-1]
            if alias is not None and alias.type == "dot":
                yield Binding(literal, frozenset(), is_all=True)
            elif alias is not None:
                yield Binding(literal, frozenset({_text(alias)}))
            else:
                last = [part for part in literal.split("/") if not re.fullmatch(r"v\d+", part)][-1:]
                names = frozenset(
                    name for part in last for name in (part, part.removeprefix("go-"), part.split(".")[0])
                )
                yield Binding(literal, names, declared=True)

    def _rust(self, node: "Node") -> Iterator[Binding]:
        if node.type == "use_declaration":
            argument = node.child_by_field_name("argument")
            tree = "" if argument is None else _text(argument)
            public = any(child.type == "visibility_modifier" for child in node.children)
            aliases = frozenset(re.findall(r"\bas\s+(?:r#)?(\w+)", tree))
            for path in used_paths(tree):
                last = [name for name in path if name not in ("self", "crate", "super")][-1:]
                yield Binding(path, aliases | frozenset(last), is_all="*" in tree, passes_on=public)
        elif node.type in ("mod_item", "extern_crate_declaration") and not node.child_by_field_name("body"):
            names = [each for field in ("name", "alias") if (each := node.child_by_field_name(field)) is not None]
            if names:
                yield Binding((_text(names[0]),), frozenset(map(_text, names)))

    def _include(self, node: "Node") -> Iterator[Binding]:
        if node.type == "preproc_include":
            path = node.child_by_field_name("path")
            if path is not None:
                yield Binding(_text(path), frozenset(), declared=True, passes_on=_HEADER.search(self.path) is not None)

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names that the file declares outside of the bodies of its functions; for Go, its package."""
        names: set[str] = set()
        for node in _walk(self.root, into=lambda each: not _FUNCTION.search(each.type)):
            if self.grammar == "go":
                if node.type == "package_clause":
                    names.update(_identifiers(node))
                continue
            name, declarators = node.child_by_field_name("name"), node.children_by_field_name("declarator")
            if name is not None:
                names.update(_identifiers(name)[-1:])
            for declarator in declarators:
                names.update(_identifiers(declarator)[:1])
        return frozenset(names)

    def exports_any(self, names: frozenset[str]) -> bool:
        """Whether a JavaScript file hands one of these names on: export { h }, export const h, module.exports."""
        for node in _walk(self.root):
            is_export = node.type == "export_statement" and not re.search(
                r"function|class", "" if (inner := node.child_by_field_name("declaration")) is None else inner.type
            )
            left = node.child_by_field_name("left") if node.type == "assignment_expression" else None
            if (is_export or (left is not None and "exports" in _identifiers(left))) and not names.isdisjoint(
                _identifiers(node)
            ):
                return True
        return False

    # What to hide

    def used(self, names: frozenset[str], words: Words) -> "tuple[frozenset[str], dict[int, frozenset[str]]]":
        """The names that assignments pass on: for the whole file, and for functions by where they begin."""
        file_wide, local = set(names), dict[int, set[str]]()
        changed = True
        while changed:
            changed = False
            for function, left, right in self._assignments:
                known = file_wide if function is None else file_wide | local.get(function, set())
                if not any(self._is_mention(leaf, known, words) for leaf in self._leaves_in(*right)):
                    continue
                names_left, is_member = left
                is_wide = function is None or is_member or not self._top_names.isdisjoint(names_left)
                into = file_wide if is_wide else local.setdefault(function or 0, set())
                if not into.issuperset(names_left):
                    into.update(names_left)
                    changed = True
        return frozenset(file_wide), {begin: frozenset(found) for begin, found in local.items()}

    @cached_property
    def _assignments(self) -> list[tuple[int | None, tuple[tuple[str, ...], bool], tuple[int, int]]]:
        found: list[tuple[int | None, tuple[tuple[str, ...], bool], tuple[int, int]]] = []
        function_end, function = 0, None
        for node in _walk(self.root):
            if node.start_byte >= function_end:
                function = None
            if function is None and _FUNCTION.search(node.type):
                function, function_end = node.start_byte, node.end_byte
            if node.type not in _ASSIGNMENTS:
                continue
            lefts = [each for name in _LEFT for each in node.children_by_field_name(name)]
            rights = [each for name in _RIGHT for each in node.children_by_field_name(name)]
            for left in lefts:
                is_member = left.type in _MEMBERS
                names = _identifiers(left)
                if is_member:
                    names = (
                        names[:1]
                        if left.type in ("subscript_expression", "index_expression", "array_access")
                        else names[-1:]
                    )
                elif left.type.endswith("declarator"):
                    names = names[:1]
                found += [(function, (tuple(names), is_member), (each.start_byte, each.end_byte)) for each in rights]
        return found

    @cached_property
    def _top_names(self) -> frozenset[str]:
        """The names that are assigned outside of functions."""
        return frozenset(name for function, (names, _), _ in self._assignments if function is None for name in names)

    def spans(
        self, names: frozenset[str], words: Words, hides: Literal["definitions", "lines"], *, is_all: bool = False
    ) -> list[tuple[int, int]]:
        """The spans to hide, in characters and in any order. is_all: everything but the imports."""
        if is_all:
            pieces = [self._characters(node.start_byte, node.end_byte) for node in self._public_imports]
            return complement(self.text, pieces)
        file_wide, local = self.used(names, words)
        chosen: list[tuple[int, int]] = []
        function_of = sorted(local)
        for leaf in self._leaves:
            at = bisect_left(function_of, leaf.begin + 1) - 1
            known = file_wide | (
                local[function_of[at]] if at >= 0 and self._function_end(function_of[at]) > leaf.begin else frozenset()
            )
            if leaf.is_comment:
                if not known.isdisjoint(_WORD.findall(leaf.text)) or words.has_module(leaf.text):
                    chosen.append((leaf.begin, leaf.end))
            elif not leaf.in_import and self._is_mention(leaf, known, words):
                chosen.append(self._unit_of(leaf) if hides == "definitions" else self._line_of(leaf))
        return [self._characters(*self._with_lines(begin, end)) for begin, end in set(chosen)]

    def _function_end(self, begin: int) -> int:
        return self._function_ends.get(begin, 0)

    @cached_property
    def _function_ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for node in _walk(self.root):
            if _FUNCTION.search(node.type):
                ends.setdefault(node.start_byte, node.end_byte)
        return ends

    def _is_mention(self, leaf: _Leaf, names: Collection[str], words: Words) -> bool:
        if not leaf.is_string:
            return leaf.text in names
        if words.has_module(leaf.text):
            return True
        return not _SPACE.search(leaf.text) and not words.last_parts.isdisjoint(_WORD.findall(leaf.text))

    @cached_property
    def _leaves(self) -> list[_Leaf]:
        leaves: list[_Leaf] = []
        import_end = 0
        for node in _walk(self.root, into=lambda each: "comment" not in each.type):
            if self._is_public_import(node):
                import_end = max(import_end, node.end_byte)
            is_comment = "comment" in node.type
            if is_comment or not node.child_count:
                is_string = "string" in node.type or node.type in ("raw_string_content", "char_literal", "preproc_arg")
                in_import = node.start_byte < import_end
                text = _text(node)
                if node.type == "preproc_arg":  # the text of a macro, which the grammar does not parse
                    leaves += [
                        _Leaf(node.start_byte, node.end_byte, word, False, False, in_import)
                        for word in _WORD.findall(text)
                    ]
                leaves.append(_Leaf(node.start_byte, node.end_byte, text, is_string, is_comment, in_import))
        return leaves

    def _leaves_in(self, begin: int, end: int) -> list[_Leaf]:
        first = bisect_left(self._leaf_begins, begin)
        return self._leaves[first : bisect_left(self._leaf_begins, end)]

    @cached_property
    def _leaf_begins(self) -> list[int]:
        return [leaf.begin for leaf in self._leaves]

    def _is_public_import(self, node: "Node") -> bool:
        if node.type in _IMPORTS or (node.type == "mod_item" and not node.child_by_field_name("body")):
            return True
        if node.type == "export_statement":
            return node.child_by_field_name("source") is not None
        if node.type in ("lexical_declaration", "variable_declaration"):
            declarators = [each for each in node.named_children if each.type == "variable_declarator"]
            return bool(declarators) and all(
                value is not None
                and re.fullmatch(r"(?:await\s+)?(?:require|import)\s*\(\s*['\"`][^'\"`$]*['\"`]\s*\)", _text(value))
                for value in (each.child_by_field_name("value") for each in declarators)
            )
        return False

    @cached_property
    def _public_imports(self) -> list["Node"]:
        return [node for node in self.root.named_children if self._is_public_import(node)]

    @cached_property
    def _units(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """The definitions at the top and in containers, in order; a container with the spans of its inner part."""
        units: list[tuple[int, int, list[tuple[int, int]]]] = []
        waiting = [self.root]
        while waiting:
            for child in waiting.pop().named_children:
                body = child.child_by_field_name("body") if child.type in _CONTAINERS else None
                inner = [body] if body is not None else []
                if child.type.startswith("preproc_") or child.type in ("export_statement", "ambient_declaration"):
                    inner = [child] if child.type in _CONTAINERS else []
                    inner = [each for each in inner if any(part.type != "identifier" for part in each.named_children)]
                units.append((child.start_byte, child.end_byte, [(each.start_byte, each.end_byte) for each in inner]))
                waiting += inner
        return sorted(units, key=lambda unit: (unit[0], -unit[1]))

    def _unit_of(self, leaf: _Leaf) -> tuple[int, int]:
        """The smallest unit around a leaf, or the container whose head it is in."""
        best = (leaf.begin, leaf.end)
        for begin, end, inner in self._units:
            if begin > leaf.begin:
                break
            if end >= leaf.end:
                best = (begin, end)
                if not any(first <= leaf.begin < last for first, last in inner):
                    break
        return best

    def _line_of(self, leaf: _Leaf) -> tuple[int, int]:
        """The smallest statement around a leaf; only its head if the leaf is before its blocks."""
        node = self.root.descendant_for_byte_range(leaf.begin, leaf.end)
        while node is not None and node.parent is not None and not _STATEMENT.search(node.type):
            node = node.parent
        if node is None or node.parent is None:
            return leaf.begin, leaf.end
        blocks = [each for name in _BLOCKS for each in node.children_by_field_name(name)]
        if blocks and leaf.begin < blocks[0].start_byte:
            return node.start_byte, blocks[0].start_byte + 1
        return node.start_byte, node.end_byte

    def own_spans(self, public: Collection[str]) -> list[tuple[int, int]] | None:
        """The spans to hide of a secret's own file; None if nothing of it is public.

        A signature that holds a constant is hidden. Doc comments are those that begin with /** or ///.
        """
        pieces: list[tuple[int, int]] = []
        if "imports" in public:
            pieces += [(node.start_byte, node.end_byte) for node in self._public_imports]
        waiting = [self.root]
        while waiting:
            for child in waiting.pop().named_children:
                body = child.child_by_field_name("body")
                if "docstrings" in public and "comment" in child.type and _text(child).startswith(("/**", "///")):
                    pieces.append((child.start_byte, child.end_byte))
                if child.type in ("export_statement", "ambient_declaration"):
                    waiting.append(child)
                elif body is not None and (child.type in _CONTAINERS or _FUNCTION.search(child.type)):
                    head = self._leaves_in(child.start_byte, body.start_byte)
                    is_plain = not any(
                        leaf.is_string or leaf.is_comment or leaf.text[:1].isdigit() or leaf.text == "="
                        for leaf in head
                    )
                    if "signatures" in public and is_plain:
                        pieces.append((child.start_byte, body.start_byte))
                    if child.type in _CONTAINERS:
                        waiting.append(body)
        found = [self._characters(begin, end) for begin, end in pieces]
        return complement(self.text, found) if found else None

    # From bytes to characters

    def _with_lines(self, begin: int, end: int) -> tuple[int, int]:
        """The lines of a span of bytes: from the first character that is not white space to the last one."""
        first = self._bytes.rfind(b"\n", 0, begin) + 1
        after = self._bytes.find(b"\n", max(end - 1, begin))
        after = len(self._bytes) if after < 0 else after
        while self._is_comment_line(first):
            first = self._bytes.rfind(b"\n", 0, first - 1) + 1
        line = self._bytes[first:after]
        return first + len(line) - len(line.lstrip()), first + len(line.rstrip())

    def _is_comment_line(self, begin: int) -> bool:
        """Whether the line before the one that begins here is a comment."""
        if begin == 0:
            return False
        above = self._bytes[self._bytes.rfind(b"\n", 0, begin - 1) + 1 : begin].strip()
        return above.startswith((b"//", b"/*", b"*")) and b"#include" not in above

    @cached_property
    def _bytes(self) -> bytes:
        return self.text.encode()

    def _characters(self, begin: int, end: int) -> tuple[int, int]:
        if self.text.isascii():
            return begin, min(end, len(self.text))
        return len(self._bytes[:begin].decode()), len(self._bytes[:end].decode())


def _walk(root: "Node", into: "Callable[[Node], bool] | None" = None) -> Iterator["Node"]:
    """All nodes, outer before inner, in order; without recursion."""
    cursor = root.walk()
    while True:
        node = cursor.node
        if node is not None:
            yield node
        if node is not None and (into is None or into(node)) and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _text(node: "Node") -> str:
    return (node.text or b"").decode()


def _identifiers(node: "Node") -> list[str]:
    """The names in a node, in order."""
    return [_text(each) for each in _walk(node) if not each.child_count and "identifier" in each.type]


def _bound_names(clause: "Node") -> Iterator[str]:
    """The names that an import clause of JavaScript binds: of a renamed import, the new name."""
    for node in _walk(clause, into=lambda each: each.type != "import_specifier"):
        if node.type == "import_specifier":
            bound = node.child_by_field_name("alias") or node.child_by_field_name("name")
            yield from [] if bound is None else [_text(bound)]
        elif node.type == "identifier":
            yield _text(node)
