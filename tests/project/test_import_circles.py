"""No circle among the modules, imports for annotations among them."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_modules_import_each_other_one_way() -> None:
    graph = grimp.build_graph("kbackup", exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 100
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # CycleError names a circle
