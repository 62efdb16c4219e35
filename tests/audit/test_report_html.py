"""The page: complete, self-contained, readable by machines that read aloud, and never ugly data."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairdraft.audit.report import Report
from fairdraft.audit.report.html import render_html, write_html
from fairdraft.audit.report.plots import MissingPlotLibrary, check_plot_library
from fairdraft.audit.report.plots.evidence import evidence_plot
from tests.audit.reports import KINDS, STATES, report_of

MAX_BYTES = 1_000_000
VOID = {"meta", "link", "br"}
PLOTS = ("evidence", "deviations", "heat", "positions", "agreement", "acceptance", "planner")


class Page(HTMLParser):
    """Checks nesting while it collects elements, ids, and the text of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def words(self, *tags: str) -> str:
        return " ".join(" ".join(self.text.get(tag, ())) for tag in tags)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {kind: render_html(report_of(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_self_contained(pages: dict[str, str], kind: str) -> None:
    html = pages[kind]
    page = Page(html)
    assert len(html.encode()) < MAX_BYTES
    assert not {"script", "img", "iframe", "object", "image", "use-external"} & set(page.tags)
    assert "@import" not in html and "http-equiv" in html and "default-src 'none'" in html
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("#", "data:,")), f"{name}={value} reaches outside"
        assert not name.startswith("on")
    assert re.findall(r"url\((?!#)", html) == []
    # namespaces are names, not addresses
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_references_resolve(pages: dict[str, str], kind: str) -> None:
    page = Page(pages[kind])
    assert len(set(page.ids)) == len(page.ids)
    wanted = set(re.findall(r"url\(#([^)]+)\)", pages[kind]))
    for name, value in page.attributes:
        if name == "xlink:href":
            wanted.add(value.removeprefix("#"))
        if name == "aria-labelledby":
            wanted.update(value.split())
    assert wanted <= set(page.ids)


@pytest.mark.parametrize("state", STATES)
def test_first_words_are_the_verdict_and_the_four_answers(
    pages: dict[str, str], state: str
) -> None:
    report = report_of(state)
    assert report.verdict.state == state
    html = pages[state]
    assert f"<title>{state.replace('_', ' ')}: " in html
    assert f"</svg>{state.replace('_', ' ')}</h1>" in html
    order = [html.index(text) for text in ("<h1>", "Is it broken?", "How sure?", "What is it?")]
    order += [html.index(text) for text in ("What next?", "What it means", "Not tested")]
    assert order == sorted(order)


@pytest.mark.parametrize("kind", ["PASS", "FAIL", "INCONCLUSIVE", "plain", "excluded"])
def test_every_plot_is_drawn_or_says_why_not(pages: dict[str, str], kind: str) -> None:
    report, page = report_of(kind), Page(pages[kind])
    figures = pages[kind].split("<figure id=")[1:]
    assert [name for name in page.ids if name in PLOTS] == list(PLOTS)
    missing = {"heat", "acceptance"} if kind == "plain" else set()
    for name, figure in zip(PLOTS, figures, strict=True):
        assert ("No plot: " in figure) == (name in missing) == ("<svg" not in figure)
    drawn = len(PLOTS) - len(missing)
    assert len(page.text["title"]) == drawn + 1 and len(page.text["desc"]) == drawn
    assert pages[kind].count("No plot: ") == len(missing)
    # real text, so that it can be selected and read aloud
    words = page.words("text", "tspan")
    for wanted in ("tokens scored", "bias is certain from here", "eps = ", "needed for a PASS"):
        assert wanted in words
    assert all(f.name in words for f in report.families if f.num_tokens)


def test_nothing_judged_leaves_no_empty_frames(pages: dict[str, str]) -> None:
    for kind in ("INVALID", "empty"):
        page = Page(pages[kind])
        assert "figure" not in page.tags and page.text["title"][1:] == []
        assert "Everything: no token was judged" in pages[kind]
        assert "turn speculation on" in pages[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_colors_come_from_the_style_sheet(pages: dict[str, str], kind: str) -> None:
    html = pages[kind]
    style = html[html.index("<style>") : html.index("</style>")]
    body = html[html.index("<body>") :]
    assert set(re.findall(r"#[0-9a-f]{6}\b", body)) == set()
    used = set(re.findall(r"var\((--[a-z]+)\)", html))
    assert used <= set(re.findall(r"(--[a-z]+):", style))
    dark = style[style.index("prefers-color-scheme: dark") : style.index("box-sizing")]
    assert all(f"--{name}:" in dark for name in ("ink", "muted", "good", "bad", "unsure", "over"))


def test_fail_names_when_and_where(pages: dict[str, str]) -> None:
    html = pages["FAIL"]
    report = report_of("FAIL")
    crossed = next(n for n, value in report.curve if value >= 3.0)
    assert f"at {crossed:,} tokens" in html
    assert "look for draws at neighboring positions" in html
    assert re.search(r'<tr class="strong"><td>repeat<br>', html)
    assert "fairdraft audit engine pocket --eps 0.01" in html
    assert html.count("One request was sent twice.") == 1


def test_impossible_token_is_certain(pages: dict[str, str]) -> None:
    assert "the target gives probability 0" in pages["excluded"]
    assert "nan" not in pages["excluded"].lower().replace("covenant", "")


def test_fault_found_by_identity_has_no_error_rate() -> None:
    report = report_of("empty")
    verdict = replace(
        report.verdict,
        state="FAIL",
        exit_code=1,
        sentence="FAIL: one random number is used for two things",
        diagnosis="draws share an address of the noise",
        reasons=("found without statistics",),
    )
    html = render_html(replace(report, verdict=verdict))
    for words in (
        "One random number is used for two things.",
        "Decided by identity, not by statistics",
        "Draws share an address of the noise</p>",
        "Found before any token was scored",
        "The law of the tokens: no statistics were needed",
        "Turn speculation off",
    ):
        assert words in html


def test_identity_at_temperature_zero_is_no_claim_of_statistics() -> None:
    report = report_of("empty")
    report = replace(
        report,
        verdict=replace(report.verdict, state="PASS", exit_code=0, reasons=()),
        num_tokens=5_000,
        num_texts=50,
        coverage=("tested: identity with plain decoding, token by token",),
    )
    html = render_html(report)
    for words in (
        "Decided by identity, not by statistics",
        "5,000 tokens of 50 texts were looked at",
        "Identity with plain decoding, token by token.",
    ):
        assert words in html
    assert "within eps" not in html and "declared families" not in html


def test_hostile_text_stays_text() -> None:
    evil = '</title><script>alert("1")</script><b onload=x>&amp;'
    report = report_of("INCONCLUSIVE")
    report = replace(
        report,
        subject=replace(report.subject, name=evil, parameters={evil: [evil]}),
        verdict=replace(report.verdict, sentence=evil, diagnosis=evil, reasons=(evil,)),
        notes=(evil,),
        environment={evil: evil},
        command=evil,
        families=tuple(replace(family, name=evil, title=evil) for family in report.families),
    )
    page = Page(render_html(report))
    assert "script" not in page.tags and ("onload", "x") not in page.attributes


def test_same_report_same_page(pages: dict[str, str]) -> None:
    assert render_html(report_of("FAIL")) == pages["FAIL"]


def test_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    write_html(report_of("INVALID"), path)
    before = path.read_bytes()
    assert before.startswith(b"<!DOCTYPE html>")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_html(report_of("empty"), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_matplotlib_keeps_its_settings() -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    assert evidence_plot(report_of("PASS")).svg
    assert matplotlib.rcParams.copy() == before
    assert "matplotlib.pyplot" not in sys.modules


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPlotLibrary, match=r"pip install 'fairdraft\[audit\]'"):
        render_html(report_of("FAIL"))
    monkeypatch.setattr("fairdraft.audit.report.plots.canvas.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"fairdraft\[audit\]"):
        check_plot_library()


def test_report_imports_neither_matplotlib_nor_torch() -> None:
    code = (
        "import sys, fairdraft.audit.report.html, fairdraft.audit.report.table;"
        "print({'matplotlib', 'torch', 'transformers', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_plots_bear_the_smallest_report() -> None:
    found = report_of("FAIL")
    small = replace(
        found,
        num_tokens=1,
        curve=((1, -0.1),),
        families=found.families[:1],
        templates=(),
        slots=found.slots[:1],
        positions=found.positions[:1],
        agreement=found.agreement[:1],
        heat=None,
    )
    assert Report.from_json(small.to_json()) == small
    assert "No plot: The draft" in render_html(small)
