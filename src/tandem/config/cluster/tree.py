"""YAML nodes with their line numbers: parsing, `--set` overrides, and errors that name the line."""

import yaml

from tandem.facts.errors import InvalidConfiguration, nearest

TEXT = "tag:yaml.org,2002:str"
NULL = "tag:yaml.org,2002:null"
_MAP = "tag:yaml.org,2002:map"
_OVERRIDE = "--set "
# The label of a tree that was made of flags.
FLAGS = "tandem serve"
# The label of one that was written anew from a file whose lines were checked before.
APPLIED = "tandem apply"


class RefusedAt(InvalidConfiguration):
    """What stands at `place`, a path as in `node_at` from the refusing mapping, cannot be."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place = place


def parse(text: str, label: str) -> yaml.MappingNode:
    """The node tree of one YAML document that is a mapping; errors call it `label`. Raises
    `InvalidConfiguration`."""
    node = _compose(text, label)
    if node is None:
        raise InvalidConfiguration(f"{label} is empty")
    if not isinstance(node, yaml.MappingNode):
        raise mistake(node, "expected keys and values")
    return node


def override(tree: yaml.MappingNode, assignment: str) -> None:
    """Changes one value in the tree, as `policies.admission=prediction`; an entry of a list is
    called by its `name` or its place, as `pools.prefill.count=4`. Raises `InvalidConfiguration`."""
    path, equals, text = assignment.partition("=")
    label = f"{_OVERRIDE}{assignment}"
    value = _compose(text, label) if equals else None
    if value is None or not path:
        raise InvalidConfiguration(f"{label}: expected KEY=VALUE, as policies.routing=cost")
    *parents, last = path.strip().split(".")
    node: yaml.Node = tree
    for step in parents:
        node = _below(node, step, value)
    if not isinstance(node, yaml.MappingNode):
        raise InvalidConfiguration(f"{label}: {last} is not a key of keys and values")
    _put(node, last, value)


def node_at(tree: yaml.Node, path: str) -> yaml.Node:
    """The node that a path as in `override` leads to, or the last one on the way to it."""
    for step in path.split("."):
        if isinstance(tree, yaml.SequenceNode):
            entries: list[yaml.Node] = tree.value
            found = next((entry for entry in entries if _entry_name(entry) == step), None)
            if found is None and step.isdecimal() and int(step) < len(entries):
                found = entries[int(step)]
        elif isinstance(tree, yaml.MappingNode):
            found = next((to for key, to in tree.value if spelled(key.value) == step), None)
        else:
            found = None
        if found is None:
            break
        tree = found
    return tree


def spelled(key: object) -> str:
    """A key as our names are written: `max-num-seqs` and `max_num_seqs` are the same."""
    return str(key).replace("-", "_")


def mistake(node: yaml.Node, problem: str) -> InvalidConfiguration:
    """The error that says where in which file the problem is."""
    mark = node.start_mark
    # An override is one line, which its label quotes in full; nobody wrote the lines of flags.
    unlined = mark.name.startswith(_OVERRIDE) or mark.name in (FLAGS, APPLIED)
    line = "" if unlined else f", line {mark.line + 1}"
    return InvalidConfiguration(f"{mark.name}{line}: {problem}")


def _compose(text: str, label: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    loader.name = label
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidConfiguration(f"{label}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InvalidConfiguration(f"{label}: not valid YAML: {error}") from error


def _below(node: yaml.Node, step: str, value: yaml.Node) -> yaml.Node:
    """The node that a step of an override's path leads to, made where a mapping lacks it: from
    then on the override, which ends in `value`, answers for it."""
    label = value.start_mark.name
    if isinstance(node, yaml.SequenceNode):
        entries: list[yaml.Node] = node.value
        names = [_entry_name(entry) for entry in entries]
        if step in names:
            return entries[names.index(step)]
        if step.isdecimal() and int(step) < len(names):
            return entries[int(step)]
        raise InvalidConfiguration(f"{label}: no entry {step}{nearest(step, filter(None, names))}")
    if not isinstance(node, yaml.MappingNode):
        raise InvalidConfiguration(f"{label}: there is nothing below {step}")
    old = next((value for key, value in node.value if spelled(key.value) == spelled(step)), None)
    if isinstance(old, yaml.MappingNode | yaml.SequenceNode):
        return old
    made = yaml.MappingNode(_MAP, [], value.start_mark, value.end_mark)
    if old is not None and old.tag != NULL:
        # `routing: cost` makes room for parameters as `routing: {name: cost}`.
        _put(made, "name", old)
    _put(node, step, made)
    return made


def set_text(tree: yaml.MappingNode, key: str, text: str) -> None:
    """Puts a text at the top of the tree."""
    _put(tree, key, yaml.ScalarNode(TEXT, text, tree.start_mark, tree.end_mark))


def _put(node: yaml.MappingNode, key: str, value: yaml.Node) -> None:
    kept = [pair for pair in node.value if spelled(pair[0].value) != spelled(key)]
    key_node = yaml.ScalarNode(TEXT, key, value.start_mark, value.end_mark)
    node.value = [*kept, (key_node, value)]


def _entry_name(entry: yaml.Node) -> str:
    pairs = entry.value if isinstance(entry, yaml.MappingNode) else []
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")
