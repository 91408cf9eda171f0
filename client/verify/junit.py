"""A report as JUnit XML, which CI systems show beside other tests."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from trtspec.client.verify.report import VerifyReport

# XML 1.0, section 2.2: control characters but tab and line ends, surrogates, U+FFFE and U+FFFF.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: VerifyReport) -> str:
    """Return the report: a suite for each part, a test case for each finding."""
    root = ElementTree.Element("testsuites", name="trtspec verify")
    for part in dict.fromkeys(finding.part for finding in report.findings):
        found = [finding for finding in report.findings if finding.part == part]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=part,
            tests=str(len(found)),
            failures=str(sum(finding.verdict == "defect" for finding in found)),
            skipped=str(sum(finding.verdict == "skipped" for finding in found)),
        )
        for finding in found:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"trtspec.verify.{part}", name=_clean(finding.name)
            )
            if finding.verdict == "defect":
                ElementTree.SubElement(case, "failure", message=_clean(finding.detail))
            elif finding.verdict == "skipped":
                ElementTree.SubElement(case, "skipped", message=_clean(finding.detail))
            elif finding.detail:
                ElementTree.SubElement(case, "system-out").text = _clean(finding.detail)
    if not report.complete:
        suite = ElementTree.SubElement(root, "testsuite", name="complete", tests="1", errors="1")
        case = ElementTree.SubElement(suite, "testcase", classname="trtspec.verify", name="complete")
        ElementTree.SubElement(case, "error", message="stopped before the end; what is missing was not seen")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Return the text without what XML cannot hold at all, not even escaped."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
