// The map: every element of every set, pictures as circles and captions as triangles.
import * as api from "./api.js";
import { announce, byId, count, icon, make } from "./dom.js";
import { picture } from "./images.js";
import { grouped, legendOf } from "./legend.js";
import { colourOf } from "./palette.js";
import { Plot } from "./plot.js";
import { notice } from "./problems.js";
import { onTheme } from "./theme.js";

const SAID = { image: "picture", text: "caption" };

/** searchFrom(point) is called on a click. Returns { show(), hide() }. */
export function startMap(searchFrom) {
  const view = byId("view-map");
  let colour = "slot",
    method = "tsne",
    controller = null,
    timer = null,
    points = [],
    plot = null,
    loaded = null;
  const hidden = { groups: new Set(), sides: new Set() };
  let groups = [];

  const canvas = make("canvas", {
    class: "points",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "map",
    "aria-label":
      "Map of the collection. Arrow keys go from item to item, Enter searches from it, + and − zoom, 0 shows all.",
  });
  const overlay = make("canvas", { class: "mark", "aria-hidden": "true" });
  const tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" }),
    legend = make("aside", { class: "legend", "aria-label": "Legend" }),
    busy = make("div", { class: "busy", hidden: true });
  const lead = make("p", { class: "lead" }, "Every element of every set. What lies close means alike.");
  const button = (drawn, said, act) =>
    make("button", { type: "button", class: "icon", "aria-label": said, title: said, onclick: act }, icon(drawn));
  const select = (label, entries, act) =>
    make(
      "label",
      { class: "field" },
      label,
      make(
        "select",
        { onchange: (event) => act(event.target.value) },
        entries.map(([value, said]) => make("option", { value }, said)),
      ),
    );

  function build() {
    view.append(
      make(
        "div",
        { class: "map-head" },
        make("div", {}, make("h1", { id: "map-title", tabindex: "-1" }, "The map"), lead),
        make(
          "div",
          { class: "sets" },
          select(
            "Colours tell",
            [
              ["slot", "the element"],
              ["label", "the label"],
            ],
            (value) => {
              colour = value;
              load();
            },
          ),
          select(
            "Laid out by",
            [
              ["tsne", "t-SNE"],
              ["pca", "PCA"],
            ],
            (value) => {
              method = value;
              load();
            },
          ),
        ),
      ),
      make(
        "div",
        { class: "map-body" },
        make(
          "div",
          { class: "stage" },
          canvas,
          overlay,
          tip,
          busy,
          make(
            "div",
            { class: "zoom" },
            button("plus", "Closer", () => plot.zoom(1.5)),
            button("minus", "Farther", () => plot.zoom(1 / 1.5)),
            button("whole", "Show all", () => plot.showAll()),
          ),
        ),
        legend,
      ),
    );
    plot = new Plot(canvas, overlay, { colourOf, hovered: tell, clicked: (i) => searchFrom(points[i]) });
    plot.shown = (point) => !hidden.groups.has(point.group) && !hidden.sides.has(point.text ? "text" : "image");
    view.plot = plot; // for whoever measures how long a frame takes
    onTheme(() => {
      if (loaded) {
        drawLegend();
        plot.restyle();
      }
    });
  }

  async function load() {
    const wanted = `${colour} ${method}`;
    if (loaded === wanted) return;
    controller?.abort();
    clearTimeout(timer);
    controller = new AbortController();
    wait("Laying out the map…", null);
    try {
      const answer = await api.map(colour, method, controller.signal);
      if (!answer.ready) {
        wait("Laying out the map…", answer.progress ?? 0, answer.note);
        timer = setTimeout(load, 1000);
        return;
      }
      loaded = wanted;
      take(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      busy.hidden = false;
      busy.replaceChildren(notice(error, load));
    }
  }

  function wait(text, progress, note) {
    busy.hidden = false;
    canvas.classList.add("old");
    busy.replaceChildren(
      make("p", { role: "status" }, text),
      progress === null
        ? ""
        : make(
            "div",
            {
              class: "bar",
              role: "progressbar",
              "aria-label": "Progress of the map",
              "aria-valuemin": 0,
              "aria-valuemax": 100,
              "aria-valuenow": Math.round(100 * progress),
              vars: { share: progress },
            },
            make("i"),
          ),
      note ? make("p", {}, note) : "",
    );
  }

  function take(answer) {
    points = answer.points;
    busy.hidden = true;
    if (!points.length) {
      busy.hidden = false;
      busy.replaceChildren(make("p", {}, "There is nothing in the index yet."));
    }
    if (answer.note) lead.textContent = answer.note;
    const { groups: made, groupOf } = grouped(points, colour);
    groups = made;
    hidden.groups.clear();
    plot.set(
      points.map((point) => ({
        x: point.x,
        y: -point.y,
        text: point.side === "text",
        group: groupOf(point),
        item: `${point.side} ${point.id}`,
      })),
    );
    drawLegend();
    announce(`${count(points.length)} points on the map`);
  }

  function drawLegend() {
    const changed = () => {
      plot.point(-1);
      plot.redraw();
    };
    legend.replaceChildren(...legendOf(points, colour, groups, hidden, changed));
  }

  function tell(i) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const point = points[i],
      [x, y] = plot.at(i);
    if (tip.dataset.of !== `${i}`) {
      tip.dataset.of = `${i}`;
      tip.replaceChildren(
        ...(point.side === "image" ? [picture(api.imageOf(point.id), { size: 160, lazy: false })] : []),
        make(
          "div",
          {},
          point.caption || point.id,
          make(
            "small",
            {},
            [`${SAID[point.side]}, element ${point.slot + 1}`, point.label].filter(Boolean).join(" · "),
          ),
        ),
      );
      if (document.activeElement === canvas)
        announce(`${SAID[point.side]}: ${point.caption || point.id}, element ${point.slot + 1}`);
    }
    const left = x + 16 + tip.offsetWidth > plot.width ? x - 16 - tip.offsetWidth : x + 16;
    const top = Math.min(y + 12, plot.height - tip.offsetHeight - 6);
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  return {
    show: () => {
      if (!plot) build();
      load();
    },
    hide: () => {
      clearTimeout(timer);
      controller?.abort();
      plot?.point(-1);
    },
  };
}
