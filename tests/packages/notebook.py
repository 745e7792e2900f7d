"""A notebook, executed and rendered by nbconvert: schedules and runs appear as pictures."""

import base64
import re
import unittest

import nbconvert
import nbformat
from nbconvert.preprocessors import ExecutePreprocessor

CELLS = {
    "a schedule": "import pipewright as pw\norder = pw.make('ZBV', ranks=4, microbatches=8)\norder",
    "a run": "order.simulate(forward=2)",
    "a search": "pw.search(ranks=2, microbatches=4, budget='small')",
}


class NotebookTest(unittest.TestCase):
    def test_pictures(self):
        cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
        notebook = nbformat.v4.new_notebook(cells=cells)
        ExecutePreprocessor(timeout=120).preprocess(notebook, {})
        for what, cell in zip(CELLS, notebook.cells):
            with self.subTest(what):
                self.assertTrue(cell.outputs[0].data["image/svg+xml"].startswith("<svg"), cell.outputs)
        page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
        pictures = [base64.b64decode(data).decode() for data in re.findall('src="data:image/svg.xml;base64,([^"]*)"', page)]
        self.assertEqual(pictures, [cell.outputs[0].data["image/svg+xml"] for cell in notebook.cells])


if __name__ == "__main__":
    unittest.main()
