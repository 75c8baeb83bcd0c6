#!/usr/bin/env python3
"""tools/ci/count_tests.py hides no failure and counts no case that did not run."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/ci"))

import count_tests  # noqa: E402

FINISHED = {"id": {"buildFinished": {}}, "finished": {"exitCode": {"code": 0}}}
GOOD = '<testcase classname="A" name="good" status="run" result="completed"/>'
BAD = '<testcase classname="A" name="bad" status="run" result="completed"><failure message="x"/></testcase>'
SKIPPED = '<testcase classname="A" name="skipped" status="run" result="skipped"><skipped message="x"/></testcase>'
DISABLED = '<testcase classname="A" name="off" status="notrun" result="suppressed"/>'


class CountTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def result(self, label, status, *cases, attempt=1, xml=True):
        outputs = []
        if xml:
            path = self.folder / f"a b {label[2:].replace('/', '_')} {attempt}.xml"
            path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
            outputs = [{"name": "test.xml", "uri": path.as_uri()}]
        return {"id": {"testResult": {"label": label, "run": 1, "shard": 1, "attempt": attempt}},
                "testResult": {"status": status, "testActionOutput": outputs}}

    def count(self, *events, status=0):
        path = self.folder / "events"
        path.write_text("".join(json.dumps(e) + "\n" for e in events))
        count = count_tests.count_step("step", status, path)
        return count.passed, count.failed

    def test_cases_of_all_targets(self):
        self.assertEqual(self.count(self.result("//a", "PASSED", GOOD, GOOD), self.result("//b", "PASSED", GOOD), FINISHED), (3, []))

    def test_failed_case(self):
        self.assertEqual(self.count(self.result("//a", "FAILED", GOOD, BAD), FINISHED, status=3), (1, ["//a: A.bad"]))

    def test_skipped_and_disabled_cases_do_not_pass(self):
        self.assertEqual(self.count(self.result("//a", "PASSED", GOOD, SKIPPED, DISABLED), FINISHED),
                         (1, ["//a: A.skipped (skipped)", "//a: A.off (skipped)"]))

    def test_failure_after_the_last_case(self):
        self.assertEqual(self.count(self.result("//a", "FAILED", GOOD), FINISHED, status=3), (1, ["//a: FAILED"]))
        self.assertEqual(self.count(self.result("//a", "TIMEOUT", xml=False), FINISHED, status=3), (0, ["//a: TIMEOUT"]))

    def test_without_cases_a_target_is_one(self):
        self.assertEqual(self.count(self.result("//a", "PASSED", xml=False), FINISHED), (1, []))
        self.assertEqual(self.count(self.result("//a", "PASSED"), FINISHED), (1, []))

    def test_last_attempt_decides(self):
        first, last = self.result("//a", "FAILED", BAD), self.result("//a", "PASSED", GOOD, attempt=2)
        self.assertEqual(self.count(first, last, FINISHED), (1, []))

    def test_target_that_does_not_build(self):
        broken = {"id": {"targetCompleted": {"label": "//b"}}, "completed": {}}
        aborted = {"id": {"targetCompleted": {"label": "//c"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}}
        left_out = {"id": {"targetCompleted": {"label": "//d"}}, "aborted": {"reason": "SKIPPED"}}
        built = {"id": {"targetCompleted": {"label": "//a"}}, "completed": {"success": True}}
        self.assertEqual(self.count(self.result("//a", "PASSED", GOOD), built, broken, aborted, left_out, FINISHED, status=1),
                         (1, ["//b: does not build", "//c: does not build"]))

    def test_run_that_broke_off(self):
        self.assertEqual(self.count(self.result("//a", "PASSED", GOOD), status=0), (1, ["Bazel broke off"]))

    def test_status_alone(self):
        self.assertEqual(self.count(self.result("//a", "PASSED", GOOD), FINISHED, status=4), (1, ["step: exit status 4"]))
        count = count_tests.count_step("script", 0)
        self.assertEqual((count.passed, count.failed), (1, []))
        self.assertEqual(count_tests.count_step("script", 2).failed, ["script: exit status 2"])
        self.assertEqual(len(count_tests.count_step("lost", 0, self.folder / "none").failed), 1)

    def total(self, *steps):
        path = self.folder / "counts"
        path.write_text("".join(json.dumps({"name": "s", "passed": p, "failed": f}) + "\n" for p, f in steps))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = count_tests.total(path)
        return status, out.getvalue().splitlines()[-1]

    def test_total(self):
        self.assertEqual(self.total((2, []), (3, [])), (0, "5 passed, 0 failed"))
        self.assertEqual(self.total((2, []), (3, ["x"])), (1, "5 passed, 1 failed"))
        self.assertEqual(self.total(), (1, "0 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
