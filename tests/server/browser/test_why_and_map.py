"""Why a result was found, the map, and the figures of the model."""

from __future__ import annotations

import statistics

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from server.browser.driving import Page
from server.browser.fake_server import Collection

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BRIGHTEST = """
const { width, height } = arguments[0], copy = new OffscreenCanvas(width, height);
const pen = copy.getContext("2d", { willReadFrequently: true });
pen.drawImage(arguments[0], 0, 0);
const { data } = pen.getImageData(0, 0, width, height);
let best = 0, place = 0;
for (let i = 0; i < width * height; i++) {
  const light = data[4 * i] + data[4 * i + 1] + data[4 * i + 2];
  if (light > best) { best = light; place = i; }
}
return [(place % width) / width, Math.floor(place / width) / height, best];
"""


def test_why_shows_the_elements_on_the_picture_and_takes_the_score_apart(page: Page, collection: Collection) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    page.click(".card [data-act='why']")
    page.until(lambda: len(page.all("#why .element")) == 4)
    item = collection.by_id[page.js("return new URLSearchParams(location.search).get('why')")]
    for number, canvas in enumerate(page.all("#why .element canvas")):
        x, y, light = page.js(BRIGHTEST, canvas)
        thing = item.things[number % len(item.things)]
        assert abs(x - thing.x) < 0.1
        assert abs(y - thing.y) < 0.1
        assert light > 300
    assert f"“one {item.things[0].name}”" in page.text("#why .element .near")
    assert [
        each.text for each in page.all("#why .element:first-child .words")[0].find_elements("css selector", "span")
    ] == [
        "blue",
        "ring",
    ]
    told = collection.explain({"item": item.id, "text": "blue ring"})
    cells = [float(each.text.replace("−", "-")) for each in page.all("#why td.part")]
    assert len(cells) == 16
    assert min(cells) < 0
    assert abs(sum(cells) - told["score"]) < 16 * 0.0005
    assert page.text("#why td.whole") == f"{told['score']:.3f}"
    assert f"score {told['score']:.3f}" in page.text(".why-head p")


def test_one_looks_at_single_elements_iterations_and_other_words(page: Page, collection: Collection) -> None:
    page.open("/?q=blue+ring&why=scenes/0000.png")
    page.until(lambda: len(page.all("#why .element")) == 4)
    large = page.all("#why .why-left canvas")[0]
    last = page.js(BRIGHTEST, large)
    page.all("#why .element")[1].click()
    assert page.js(BRIGHTEST, large)[:2] != last[:2]
    assert page.all("#why .element")[1].get_attribute("aria-pressed") == "true"
    assert page.js("return document.querySelector('#why tr.chosen').dataset.element") == "1"
    sharp = page.js(BRIGHTEST, large)[2]
    page.one("#why .steps input").send_keys(Keys.HOME)
    assert "1 of 3" in page.text("#why .steps")
    assert page.js(BRIGHTEST, large)[2] < sharp  # the first iteration is spread out, on the same scale
    page.one("#why .ask input").send_keys("red square\n")
    page.until(lambda: collection.asked[-1] == ("explain", {"item": "scenes/0000.png", "text": "red square"}))
    page.until(lambda: "“red square” · score" in page.text(".why-head p"))


def test_why_lights_up_what_the_words_name(page: Page, collection: Collection) -> None:
    collection.mapped = True
    item = collection.by_id["scenes/0000.png"]
    first, second = item.things[:2]

    def bright() -> tuple[float, float]:
        x, y, _ = page.js(BRIGHTEST, page.all("#why .why-left canvas")[0])
        return x, y

    for thing in (first, second):
        page.open(f"/?q={thing.name.replace(' ', '+')}&why=scenes/0000.png")
        page.until(lambda: len(page.all("#why .element")) == 4)
        tabs = page.all("#why .reading .chips button")
        words = thing.name.split()
        assert [tab.text for tab in tabs] == [*(f"Where is “{word}”?" for word in words), "Where is all of it?"]
        assert [tab.get_attribute("aria-pressed") for tab in tabs] == ["true"] + ["false"] * len(words)
        tabs[-1].click()
        assert bright() == pytest.approx((thing.x, thing.y), abs=0.1)
        assert "adds to the score of these words" in page.text("#why .reading")
        assert page.all("#why .element[aria-pressed='true']") == []
    page.all("#why .element")[0].click()
    assert "its attention" in page.text("#why .reading")
    assert "Element 1" in page.text("#why .scale")
    page.all("#why .reading .chips button")[-1].click()
    assert page.all("#why .element[aria-pressed='true']") == []
    assert bright() == pytest.approx((second.x, second.y), abs=0.1)


def test_why_closes_by_escape_and_by_the_back_button(page: Page) -> None:
    page.open("/?q=blue+ring")
    page.results(24)
    page.click(".card .shot")
    page.until(lambda: page.all("#why .element"))
    page.keys(Keys.ESCAPE)
    page.until(lambda: page.address == "/?q=blue+ring" and not page.js("return document.querySelector('#why').open"))
    page.until(lambda: page.focused().startswith("1. "))
    page.click(".card .shot")
    page.until(lambda: page.all("#why .element"))
    page.driver.back()
    page.until(lambda: not page.js("return document.querySelector('#why').open"))
    assert len(page.results(24)) >= 24


def test_a_picture_found_by_a_picture_is_explained_by_its_caption(page: Page, collection: Collection) -> None:
    page.open("/?item=scenes/0003.png")
    page.results(24)
    page.click(".card .shot")
    page.until(lambda: page.all("#why .element"))
    asked = collection.asked[-1][1] if collection.asked[-1][0] == "explain" else None
    bodies = [body for path, body in collection.asked if path == "explain"]
    assert bodies == [{"item": bodies[0]["item"], "text": collection.by_id[bodies[0]["item"]].caption}], asked
    assert "found by a picture" in page.text("#why .why-body > :last-child > .small")


def open_map(page: Page) -> None:
    page.open("/#map")
    page.until(lambda: page.js("return document.querySelector('#view-map').plot?.points.length") == 5000)
    page.until(lambda: page.js("return document.querySelector('#view-map').plot.frames.length") > 0)


def test_the_map_shows_both_kinds_tells_of_an_item_and_searches_from_it(page: Page, collection: Collection) -> None:
    open_map(page)
    assert collection.map_asked == 2  # not ready at first
    legend = page.text(".legend")
    assert "element 4\n1,250" in legend
    assert "pictures\n2,500" in legend
    assert "captions\n2,500" in legend
    # The outermost point has no neighbour that covers it.
    x, y, which = page.js(
        "const plot = document.querySelector('#view-map').plot;"
        "const i = plot.points.reduce((best, point, i) => (point.x < plot.points[best].x ? i : best), 0);"
        "return [...plot.at(i), i]"
    )
    canvas = page.one("canvas.points")
    size = canvas.size
    move = ActionChains(page.driver, duration=0).move_to_element_with_offset(
        canvas, int(x - size["width"] / 2), int(y - size["height"] / 2)
    )
    move.perform()
    point = collection.map("slot")["points"][which]
    assert point["caption"] in page.text(".tip")
    move.click().perform()
    page.until(lambda: "/?item=" in page.address)
    body = next(body for path, body in reversed(collection.asked) if path == "search")
    assert (body["item"], body["side"]) == (point["id"], point["side"])
    page.driver.back()
    page.until(lambda: page.address == "/#map" and page.one("canvas.points"))


def test_the_map_is_walked_with_keys_and_coloured_by_label(page: Page, collection: Collection) -> None:
    open_map(page)
    page.one("canvas.points").send_keys(Keys.ARROW_RIGHT)
    page.one(".tip")
    first = page.js("return document.querySelector('#view-map').plot.over")
    page.keys(Keys.ARROW_RIGHT)
    second = page.js("return document.querySelector('#view-map').plot.over")
    assert second != first
    assert collection.map("slot")["points"][second]["caption"] in page.js(
        "return document.querySelector('#live').textContent"
    )
    page.all(".map-head select")[0].send_keys("the label")
    page.until(lambda: "triangle" in page.text(".legend"))
    page.click(".legend .line")
    assert page.one(".legend .line").get_attribute("aria-pressed") == "false"
    page.keys("/")
    page.until(lambda: page.focused() == "Search words")


def work(page: Page) -> float:
    """Milliseconds that the page's own thread has worked, whatever else the machine does."""
    metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def test_five_thousand_points_are_drawn_fast_enough_to_move_smoothly(page: Page) -> None:
    open_map(page)
    page.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    pan = """
        const done = arguments[0], plot = document.querySelector("#view-map").plot, times = [];
        function step(now) {
          times.push(now);
          plot.pan(Math.sin(times.length / 5), 1);
          if (times.length <= 40) requestAnimationFrame(step);
          else done(times.slice(1).map((time, i) => time - times[i]));
        }
        requestAnimationFrame(step);
    """
    took = []
    for _ in range(3):  # the first goes while the code is still being compiled
        before = work(page)
        between = page.driver.execute_async_script(pan)
        took.append((work(page) - before) / len(between))
    page.driver.execute_cdp_cmd("Performance.disable", {})
    assert page.js("return document.querySelector('#view-map').plot.frames.length") >= 100
    # 7 to 8 ms on an idle machine without a graphics card: a busy one gets room, a much slower way of drawing does not.
    assert min(took) < 50, f"frames {statistics.median(between):.1f} ms apart"


def test_the_model_is_told_in_figures_with_their_stamp(page: Page) -> None:
    page.open("/#model")
    page.until(lambda: "Slot usage" in page.js("return document.querySelector('#view-model').textContent"))
    told = page.text("#view-model")
    for part in (
        "0.214",
        "log variance −1.54",
        "38 %",
        "51.2",
        "R@10",
        "rsum 412.3",
        "0.981",
        "400 candidates",
        "19 MB",
    ):
        assert part in told
    assert "Measured on pairs, shapes, val, 24 images, 48 texts, inductive" in told
