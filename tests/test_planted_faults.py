"""The planted faults fit the code as it is: ``make faults`` plants them."""

import ast

from plant_faults import FAULTS, ROOT


def test_every_fault_can_be_planted_and_names_a_test():
    wrong: list[str] = []
    for fault in FAULTS:
        found = (ROOT / fault["file"]).read_text(encoding="utf-8").count(fault["old"])
        path, _, name = fault["test"].partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if found != 1:
            wrong.append(f"{fault['file']}: {fault['old']!r} stands there {found} times")
        if name and name.split("::")[-1].split("[")[0] not in tests:
            wrong.append(f"{path} has no {name}")
    assert not wrong, "\n".join(wrong)
