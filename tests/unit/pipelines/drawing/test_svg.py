"""Figures as SVG: what a browser, a screen reader and a document that has several of them need."""

import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

from hypothesis import given, settings
from tests.unit.pipelines.drawing.samples import REVENUE, delta, make_spec, make_status, topic
from tests.unit.pipelines.drawing.test_layout import figures

from penstock.pipelines.drawing.figure import Figure, make_figure
from penstock.pipelines.drawing.svg import draw, tell
from penstock.pipelines.home.status import State

SVG = "{http://www.w3.org/2000/svg}"


def read(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314 - our own


def parse(figure: Figure) -> ElementTree.Element:
    return read(draw(figure))


def cards(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found = [each for each in root.iter(f"{SVG}rect") if (each.get("class") or "").startswith("card")]
    return [tuple(float(each.attrib[key]) for key in ("x", "y", "width", "height")) for each in found]  # type: ignore[misc]


def test_names_and_numbers_are_in_it() -> None:
    texts = [each.text for each in parse(make_figure(REVENUE, make_status())).iter(f"{SVG}text")]
    for text in (
        "revenue",
        "running",
        "orders",
        "topic orders",
        "1,500 rows/s",
        "lag 30",
        "2 not: positive",
        "SOURCES",
    ):
        assert text in texts


def test_markup_in_names_stays_text() -> None:
    hostile = "<script>\"&'</script>"
    spec = make_spec((topic(hostile),), (), (delta("c", hostile),), name="p", description=hostile)
    drawn = draw(make_figure(spec))
    assert "<script" not in drawn
    texts = [each.text for each in read(drawn).iter(f"{SVG}text")]
    assert hostile in texts


def test_what_is_cut_off_is_in_the_tooltip() -> None:
    status = make_status()
    trouble = "no broker answers " * 10
    sinks = {**status.sinks, "raw": replace(status.sinks["raw"], trouble=trouble)}
    root = parse(make_figure(REVENUE, replace(status, sinks=sinks)))
    titles = [each.text or "" for each in root.iter(f"{SVG}title")]
    assert any(trouble.strip() in title for title in titles)
    assert any((each.text or "").endswith("…") for each in root.iter(f"{SVG}text"))


def test_screen_readers_are_told() -> None:
    figure = make_figure(REVENUE, make_status(State.FAILED, reason="no room"))
    root = parse(figure)
    named = (root.get("aria-labelledby") or "").split()
    texts = {each.get("id"): each.text for each in root if each.get("id")}
    assert root.get("role") == "img"
    assert [texts[each] for each in named] == ["Pipeline revenue", tell(figure)]
    assert "State: failed, no room" in tell(figure)
    assert "Step hourly (Python revenue.py:hourly), from clean and customers." in tell(figure)


def test_nothing_comes_from_elsewhere() -> None:
    drawn = draw(make_figure(REVENUE, make_status()))
    assert re.findall(r"https?://[^\s\"']+", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|@font-face|<image|<script|href", drawn)


def test_every_colour_has_a_dark_one() -> None:
    light, dark = draw(make_figure(REVENUE)).split("@media (prefers-color-scheme: dark) {")
    rule = re.compile(r"^(\.revenue-figure .*) \{ ((?:fill|stroke): #\w+); \}$", re.MULTILINE)
    lights, darks = dict(rule.findall(light)), dict(rule.findall(dark))
    assert lights
    assert lights.keys() == darks.keys()
    assert all(lights[which] != darks[which] for which in lights)


def test_two_on_a_page_do_not_meet() -> None:
    one, other = (draw(replace(make_figure(REVENUE), title=title)) for title in ("one.day", "two"))
    ids = [set(re.findall(r'id="([^"]+)"', each)) for each in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for rules in re.findall(r"<style>(.*?)</style>", one, re.DOTALL):
        for line in rules.split("\n"):
            assert not line or line == "}" or line.startswith((".one-day-figure ", "@media"))


@given(figures())
@settings(max_examples=60, deadline=None)
def test_boxes_are_apart_and_within(figure: Figure) -> None:
    root = parse(figure)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = cards(root)
    assert len(found) == len(figure.nodes)
    for x, y, wide, high in found:
        assert 0 <= x < x + wide <= width
        assert 0 <= y < y + high <= height
    for (x, y, wide, high), (to_x, to_y, to_wide, to_high) in combinations(found, 2):
        assert x + wide < to_x or to_x + to_wide < x or y + high < to_y or to_y + to_high < y


def test_trouble_is_seen_by_the_box() -> None:
    classes = [each.get("class") for each in parse(make_figure(REVENUE, make_status())).iter(f"{SVG}rect")]
    assert classes.count("card trouble") == 1
