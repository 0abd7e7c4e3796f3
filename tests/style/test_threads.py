"""Every thread is supervised: nothing dies in silence while others wait for it."""

import ast

from tests.style.source import modules

SUPERVISOR = "src/tandem/kv/threads.py"


def test_threads_are_made_by_their_supervisor_alone():
    makers = {
        module.name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Thread", "threading.Thread", "_thread.start_new_thread")
    }
    assert makers == {SUPERVISOR}
