#!/usr/bin/env python3
"""Counts the test cases of Bazel runs, from what each run itself says it did.

    tools/ci/count_tests.py step NAME STATUS [EVENTS] >>COUNTS   right after each step
    tools/ci/count_tests.py total COUNTS                         at the end

NAME is what the step is called, STATUS its exit status, EVENTS the file that Bazel wrote for
--build_event_json_file; a step without EVENTS is one case. `total` prints a line a step, the
cases that failed, and at last `N passed, N failed`; it exits with 1 if anything failed.

A test's cases are those of its test.xml of this run. What failed without a failed case (a
crash, a leak found at exit, a target that does not build, a run that broke off) counts as
one failed case each, and so does a case that was skipped: nothing that did not run passes.
"""

import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


class Count:
    def __init__(self):
        self.passed = 0
        self.failed = []  # names

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed

    def __str__(self):
        return f"{self.passed} passed, {len(self.failed)} failed"


def count_xml(label, path):
    """The cases of one test.xml; None if there is no sound one."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    count = Count()
    for case in root.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name")))) or "?"
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed.append(f"{label}: {name}")
        elif case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed") or case.get("status") == "notrun":
            count.failed.append(f"{label}: {name} (skipped)")
        else:
            count.passed += 1
    return count if count.passed or count.failed else None


def count_result(label, result):
    """The cases of one run of one test target."""
    passed = result.get("status") == "PASSED"
    xml = [o["uri"] for o in result.get("testActionOutput", []) if o.get("name") == "test.xml" and o.get("uri", "").startswith("file:")]
    count = count_xml(label, urllib.parse.unquote(urllib.parse.urlparse(xml[0]).path)) if xml else None
    if count is None:
        count = Count()
        count.passed = int(passed)
    if not passed and not count.failed:
        count.failed.append(f"{label}: {result.get('status', 'no status')}")
    return count


def count_events(path):
    """The cases of one Bazel run."""
    results, broken, finished = {}, [], False
    for line in pathlib.Path(path).read_text().splitlines():
        event = json.loads(line)
        identity = event["id"]
        if "testResult" in identity:
            test = identity["testResult"]
            key = test["label"], test.get("run"), test.get("shard")
            # Of several attempts the last one decides.
            if key not in results or results[key][0] <= test.get("attempt", 0):
                results[key] = test.get("attempt", 0), event.get("testResult", {})
        elif "targetCompleted" in identity:
            # A target that this machine cannot have is left out on purpose.
            skipped = event.get("aborted", {}).get("reason") == "SKIPPED"
            if not skipped and not event.get("completed", {}).get("success"):
                broken.append(identity["targetCompleted"]["label"])
        elif "buildFinished" in identity:
            finished = "finished" in event
    count = Count()
    for (label, _, _), (_, result) in sorted(results.items(), key=lambda item: str(item[0])):
        count.add(count_result(label, result))
    count.failed += [f"{label}: does not build" for label in broken if label not in {key[0] for key in results}]
    if not finished:
        count.failed.append("Bazel broke off")
    return count


def count_step(name, status, events=None):
    count = Count()
    if events:
        try:
            count = count_events(events)
        except (OSError, ValueError, KeyError) as error:
            count.failed.append(f"{name}: no account of the run: {error!r}")
    elif status == 0:
        count.passed = 1
    if status != 0 and not count.failed:
        count.failed.append(f"{name}: exit status {status}")
    return count


def total(path):
    everything = Count()
    for line in pathlib.Path(path).read_text().splitlines():
        step = json.loads(line)
        count = Count()
        count.passed, count.failed = step["passed"], step["failed"]
        print(f"{step['name']}: {count.passed} cases passed, {len(count.failed)} failed")
        everything.add(count)
    for name in everything.failed:
        print(f"FAILED {name}")
    if not everything.passed and not everything.failed:
        everything.failed.append("nothing ran")
    print(everything)
    return 1 if everything.failed else 0


def main():
    match sys.argv[1:]:
        case ["step", name, status, *events] if len(events) <= 1:
            count = count_step(name, int(status), *events)
            print(json.dumps({"name": name, "passed": count.passed, "failed": count.failed}))
            return 0
        case ["total", path]:
            return total(path)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
