"""The JSON schemas say what the parsers say: schemas.py FOLDER, where schedule.schema.json and costs.schema.json are.

Every example, and every variant of it with one value replaced or one key removed or added, is valid for the schema if
and only if the parser reads it. What relates two values (the length of a list, a stage that no rank has) is for the parser
alone, so the examples are large enough that no variant breaks such a relation by chance.
"""

import copy
import json
import os
import re
import sys
import unittest

import jsonschema
import pipewright as pw

FOLDER = sys.argv.pop(1)

VALUES = [None, True, 0, 1, -1, 1.5, 1e-13, 1e19, "", "x y", "0F0", "0f0", "0F", "F0", "0UNSHARD", "0UNSHARD1", "0WAIT_SEND_F0", "0WAIT_SEND_F", "0WAIT_REDUCE_GRAD",
          "(0F0;0B1)OVERLAP_F_B", "(0F0;0F1)OVERLAP_F_B", "(0F0)OVERLAP_F_B", "full", "2,3", "2,,3", "inf", "loop", "edge", "latest",
          "parity", "2.11", "2.12", "compute_only", [], [1], [0.5], [None], {}, {"from": 1}]


def schema(name):
    with open(os.path.join(FOLDER, f"{name}.schema.json"), encoding="utf-8") as file:
        loaded = json.load(file)
    jsonschema.Draft7Validator.check_schema(loaded)
    return jsonschema.Draft7Validator(loaded)


def variants(document):
    """The document with one value replaced, or one key removed or added, at every place."""
    def at(path):
        changed = copy.deepcopy(document)
        place = changed
        for step in path[:-1]:
            place = place[step]
        return changed, place

    def visit(value, path):
        if path:
            for other in VALUES:
                changed, place = at(path)
                place[path[-1]] = other
                yield f"{path} = {other!r}", changed
        if isinstance(value, dict):
            changed, place = at([*path, "more"])
            place["more"] = 1
            yield f"{path} and a key", changed
            for key in value:
                changed, place = at([*path, key])
                del place[key]
                yield f"{path} without {key}", changed
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            yield from visit(child, [*path, key])

    yield from visit(document, [])


# What only the parser can know: numbers and names that must fit the rest of the document.
RELATIONS = {"PW005", "PW006", "PW010", "PW011", "PW024", "PW025", "PW026", "PW027", "PW028", "PW029", "PW085", "PW086", "PW088"}


class SchemaTest(unittest.TestCase):
    def agree(self, validator, parse, document):
        """Returns how many variants are valid and how many are not."""
        counts = {True: 0, False: 0}
        for what, variant in variants(document):
            try:
                parse(json.dumps(variant))
                reads = True
            except pw.ScheduleError as error:
                codes = {one.code for one in error.diagnostics}
                if codes <= RELATIONS:
                    continue
                reads = False
            with self.subTest(what):
                self.assertEqual(validator.is_valid(variant), reads)
            counts[reads] += 1
        return counts

    def test_schedules(self):
        validator = schema("schedule")
        for name in pw.schedules():
            order = pw.make(name, ranks=4, microbatches=8)
            for schedule in (order, order.lower(residency=2, lookahead="auto", channels="peer", capacity=1, reduce_every=2)):
                validator.validate(json.loads(schedule.to_json()))
        program = pw.read("(0F0;0B1)OVERLAP_F_B,0F1\n").to_json()
        validator.validate(json.loads(program))

    def test_wrong_schedules(self):
        document = json.loads(pw.make("1F1B", ranks=2, microbatches=2).to_json())
        document["lowering"] = {"torch": "2.15", "defer-reduce-grad-wait": False, "max-outstanding-sends": 3, "residency": 2, "lookahead": "2,3", "evict": "pytorch",
                                "receives": "latest", "reduce-every": 2, "channels": "edge", "capacity": "inf",
                                "forward-only": False, "merge-backward": False, "split-backward": False,
                                "weight-free-w": False}
        document["rows"][0].append(None)
        counts = self.agree(schema("schedule"), lambda text: pw.read(text + "\n", name="variant.json"), document)
        self.assertGreater(counts[True], 50)
        self.assertGreater(counts[False], 500)

    def test_costs(self):
        validator = schema("costs")
        document = {"version": 1, "unit": "ms", "microbatch_size": 2, "forward": 18.522, "backward_input": [18.1, 0, 18.1], "backward_weight": 9.337,
                    "recompute": [1, 0.5, 0], "unshard": 1, "reshard": 0, "reduce_grad": 2, "rank_scale": [1, 1.1],
                    "microbatch_scale": [1, 1.5], "slice_scale": [0.5, 1.5],
                    "latency": 0.601, "bandwidth": 2.5e7, "links": [{"from": 3, "to": 2, "latency": 4, "bandwidth": 1e6}],
                    "output_bytes": 8388608, "input_gradient_bytes": 8388608, "activation_bytes": 3.4e8,
                    "checkpoint_bytes": [8388608, 0, 0], "offload_bytes": [2e8, 0, 0],
                    "overlap": 0.5, "offload": 4, "reload": [5, 0, 0], "weight_input_bytes": 1.1e8, "parameter_bytes": 1e9, "gradient_bytes": [1e9],
                    "shard_bytes": 5e8, "optimizer_bytes": [2e9, 0, 0], "rank_memory_bytes": [8e10, 4e10]}
        validator.validate(document)
        # Layers and their cut stand in the place of costs by stage.
        model = {"version": 1, "layers": [{"count": 3, "forward": 2, "activation_bytes": 7}, {"parameter_bytes": 1e9}], "cut": [2, 2]}
        validator.validate(model)
        pw._pipewright.costs("model.json", json.dumps(model))
        self.assertEqual(sorted({*document, *model}), sorted(validator.schema["properties"]))
        counts = self.agree(validator, lambda text: pw._pipewright.costs("variant.json", text), document)
        self.assertGreater(counts[True], 100)
        self.assertGreater(counts[False], 500)

    def test_documented_example(self):
        with open(os.path.join(os.path.dirname(__file__), "../../schedule/problem/COSTS.md"), encoding="utf-8") as file:
            example = re.search(r"```json\n(.*?)```", file.read(), re.DOTALL).group(1)
        schema("costs").validate(json.loads(example))


if __name__ == "__main__":
    unittest.main()
