#!/usr/bin/env python3
"""tools/lint/check_coverage.py takes what covers, and refuses the rest, on a small made-up tree."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lint"))

import check_coverage  # noqa: E402
from source_tree import SourceTree  # noqa: E402

FOLDER = "test/thing"
TABLE = check_coverage.Table(FOLDER, "What is covered")
SOURCES = {
    "test/other/a_test.cc": "TEST(Suite, Works) {}\nTEST_F(FixtureTest,\n       Longer) {}\nTEST_P(Many, Values) {}\n",
    "test/other/suite.h": "TYPED_TEST(Typed, Runs) {}\n",
    "test/interop/python_test.py": "class Opens(Base):\n    def test_copies(self):\n        pass\n    def helper(self):\n"
                                   "        pass\n",
    "torch_dcp/a.cc": "TEST(NoTest, OfTheLibrary) {}\n",
}


class CoverageTest(unittest.TestCase):
    def check(self, behaviours, covers, write=True):
        """The advice of the findings, and the table that was written."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = dict(SOURCES)
            files[TABLE.behaviours] = behaviours
            files[TABLE.covers] = covers
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            findings = check_coverage.check(SourceTree(root), [TABLE], write=write)
            written = root / TABLE.written
            return [(f.path, f.line, f.advice) for f in findings], written.read_text() if written.exists() else None

    def expect_refused(self, covers, *advice):
        findings, _ = self.check("A words\n", covers)
        self.assertEqual([f[2] for f in findings], list(advice))

    def test_every_kind_of_cover(self):
        findings, table = self.check(
            "# First\nA one\nB two\n\n# Second\nC three\n",
            "A Suite.Works\nA FixtureTest.Longer\nA Many.Values\nA Typed.Runs\nA python_test.Opens.test_copies\n"
            "B n/a has none\nB fsdp hooks\nC later worker process: starts\n")
        self.assertEqual(findings, [])
        self.assertIn("## First\n\n| | behaviour | tests |\n| --- | --- | --- |\n| A | one | `Suite.Works`, "
                      "`FixtureTest.Longer`, `Many.Values`, `Typed.Runs`, `python_test.Opens.test_copies` |\n", table)
        self.assertIn("| B | two | n/a has none, with FSDP: hooks |\n\n## Second\n", table)
        self.assertIn("| C | three | later, with worker process: starts |\n", table)

    def test_without_headings(self):
        findings, table = self.check("A one\n", "A Suite.Works\n")
        self.assertEqual(findings, [])
        self.assertNotIn("##", table)
        self.assertTrue(table.startswith("# What is covered\n"))

    def test_tests_that_no_source_defines(self):
        for cover in ("Suite.Gone", "Works", "NoTest.OfTheLibrary", "python_test.Opens.helper",
                      "python_test.Gone.test_copies", "other_test.Opens.test_copies"):
            self.expect_refused(f"A {cover}\nA Suite.Works\n", f"no source has a test {cover}")

    def test_kinds_without_their_words(self):
        for cover in ("n/a", "fsdp", "later", "later some day", "later asynchronous"):
            self.expect_refused(f"A {cover}\nA Suite.Works\n", f"no source has a test {cover}")

    def test_a_behaviour_without_a_line(self):
        self.expect_refused("", "A (words) has no test")

    def test_a_line_without_a_behaviour(self):
        self.expect_refused("A Suite.Works\nZ Suite.Works\n", "no behaviour has the name Z")

    def test_twice(self):
        self.expect_refused("A Suite.Works\nA Suite.Works\n", "A has Suite.Works twice")
        findings, _ = self.check("A words\nA again\n", "A Suite.Works\n")
        self.assertEqual(findings, [(TABLE.behaviours, 2, "A is there twice")])

    def test_a_table_that_is_not_the_written_one(self):
        findings, _ = self.check("A words\n", "A Suite.Works\n", write=False)
        self.assertEqual([f[0] for f in findings], [TABLE.written])

    def test_the_tables_of_this_checkout_are_told_apart(self):
        folders = [table.folder for table in check_coverage.TABLES]
        self.assertEqual(len(set(folders)), len(folders))


if __name__ == "__main__":
    unittest.main()
