"""What machines must not look like: a decision that is only taken when somebody iterates it, and an
audit that an option of Python switches off."""

import ast
import textwrap

import pytest

from tests.style.source import modules

MACHINES = [module for module in modules() if module.room == "cluster"]
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
    "popleft", "remove", "setdefault", "sort", "update",
}  # fmt: skip


def own_nodes(function):
    """The syntax of a function without that of functions inside it."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def is_generator(function):
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function))


def changes(function, known, seen=frozenset()):
    """What in a function changes state that outlives it, in the functions of its file that it
    calls too."""
    found = []
    for node in own_nodes(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if isinstance(node.func, ast.Attribute) and name in MUTATORS:
                # A list of one's own is no state.
                found += [ast.unparse(node)] if "." in ast.unparse(node.func.value) else []
            elif name in known and name not in seen and _is_own(node.func):
                found += changes(known[name], known, seen | {name})
    return found


def _is_own(called):
    """A function of the file, or a method of the same object."""
    return isinstance(called, ast.Name) or ast.unparse(called).count(".") == 1


def lazy_changes(tree):
    known = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {
        name: found
        for name, function in known.items()
        if is_generator(function) and (found := changes(function, known))
    }


@pytest.mark.parametrize("module", MACHINES, ids=lambda module: module.name)
def test_no_generator_changes_state(module):
    """Whoever forgets to iterate it would leave everything as it was."""
    assert lazy_changes(module.tree) == {}


def test_the_rule_sees_what_it_is_for():
    code = """
    class Nodes:
        def lose(self, node):
            self._nodes.remove(node)
            yield Gone(node)

        def tell(self, news):
            for node in self._nodes:
                yield Send(node, news)

        def close(self):
            yield from self._end()

        def _end(self):
            self.ended = True
            return []
    """
    assert set(lazy_changes(ast.parse(textwrap.dedent(code)))) == {"lose", "close"}


def test_no_audit_rests_on_assert():
    """`python -O` leaves `assert` out, and with it whatever an auditor was to find."""
    resting = [
        f"{module.name}:{node.name}"
        for module in modules()
        for node in module.functions()
        if "audit" in node.name
        if any(isinstance(each, ast.Assert) for each in ast.walk(node))
    ]
    assert resting == []
