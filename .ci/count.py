"""Counts test cases from the test.xml files that Bazel's event files name, and prints `N passed, N failed`.

count.py BROKEN_STEPS EVENT_FILES. Before the count stands the end of each failed test's log. Exits with 1 unless there are
tests, none failed or was skipped, and no step broke.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree


def cases(path):
    """The number of cases that passed in one test.xml, and the names of the others. A skipped case did not pass."""
    passed, failed = 0, []
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        bad = any(child.tag in ("failure", "error", "skipped") for child in case) or case.get("status") == "notrun"
        if bad:
            failed.append(f"{case.get('classname', '')}.{case.get('name', '')}")
        passed += not bad
    return passed, failed


def print_end(label, uri, lines=12):
    with open(urllib.parse.unquote(urllib.parse.urlparse(uri).path), errors="replace") as log:
        for line in log.read().splitlines()[-lines:]:
            print(f"  {label}: {line[:300]}")


def main():
    broken_steps, files = int(sys.argv[1]), sys.argv[2:]
    passed = failed = 0
    for path in files:
        reports, logs, bad_labels, reported_bad = {}, {}, set(), set()
        with open(path) as events:
            for line in events:
                event = json.loads(line)
                if "testResult" in event.get("id", {}) and "testResult" in event:
                    key = tuple(sorted(event["id"]["testResult"].items(), key=str))
                    for output in event["testResult"].get("testActionOutput", []):
                        if output["name"] == "test.xml":
                            reports[str(key)] = (event["id"]["testResult"]["label"], output["uri"])
                        elif output["name"] == "test.log" and event["testResult"]["status"] != "PASSED":
                            logs[event["id"]["testResult"]["label"]] = output["uri"]
                if "testSummary" in event.get("id", {}) and event.get("testSummary", {}).get("overallStatus") != "PASSED":
                    bad_labels.add(event["id"]["testSummary"]["label"])
        for label, uri in reports.values():
            good, bad = cases(urllib.parse.unquote(urllib.parse.urlparse(uri).path))
            passed, failed = passed + good, failed + len(bad)
            if bad:
                reported_bad.add(label)
            for name in bad:
                print(f"FAILED OR NOT RUN: {label} {name}")
        # A test that died, ran out of time or was not built has no failed case of its own.
        failed += len(bad_labels - reported_bad)
        for label in sorted(bad_labels):
            if label in logs:
                print_end(label, logs[label])
            print(f"FAILED TEST: {label}")
    if broken_steps and not failed:
        failed = broken_steps
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


sys.exit(main())
