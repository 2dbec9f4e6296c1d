// The map: every element of every set, pictures as circles and captions as triangles.
import * as api from "./api.js";
import { announce, byId, count, icon, make, mark } from "./dom.js";
import { picture } from "./images.js";
import { colourOf, COLOURS } from "./palette.js";
import { Plot } from "./plot.js";
import { notice } from "./problems.js";
import { onTheme } from "./theme.js";

const SIDES = [["image", "pictures", "circle"], ["text", "captions", "triangle"]];

/** searchFrom(point) is called on a click. Returns { show(), hide() }. */
export function startMap(searchFrom) {
  const view = byId("view-map");
  let colour = "slot", method = "pca", controller = null, timer = null, points = [], plot = null, loaded = null;
  const hidden = { groups: new Set(), sides: new Set() };
  let groups = [];

  const canvas = make("canvas", { class: "points", tabindex: "0", role: "application", "aria-roledescription": "map", "aria-label": "Map of the collection. Arrow keys go from item to item, Enter searches from it, plus and minus zoom, 0 shows all." });
  const overlay = make("canvas", { class: "mark", "aria-hidden": "true" });
  const tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" }), legend = make("aside", { class: "legend", "aria-label": "Legend" }), busy = make("div", { class: "busy", hidden: true });
  const lead = make("p", { class: "lead" }, "Every element of every set. What lies close means alike.");
  const button = (drawn, said, act) => make("button", { type: "button", class: "icon", "aria-label": said, title: said, onclick: act }, icon(drawn));
  const select = (label, entries, act) => make("label", { class: "field" }, label, make("select", { onchange: (event) => act(event.target.value) }, entries.map(([value, said]) => make("option", { value }, said))));

  function build() {
    view.append(
      make("div", { class: "map-head" }, make("div", {}, make("h1", { id: "map-title", tabindex: "-1" }, "The map"), lead),
        make("div", { class: "sets" },
          select("Colours tell", [["slot", "the element"], ["label", "the label"]], (value) => { colour = value; load(); }),
          select("Laid out by", [["pca", "PCA"], ["tsne", "t-SNE"]], (value) => { method = value; load(); }))),
      make("div", { class: "map-body" },
        make("div", { class: "stage" }, canvas, overlay, tip, busy,
          make("div", { class: "zoom" }, button("plus", "Closer", () => plot.zoom(1.5)), button("minus", "Farther", () => plot.zoom(1 / 1.5)), button("whole", "Show all", () => plot.showAll()))),
        legend));
    plot = new Plot(canvas, overlay, { colourOf, hovered: tell, clicked: (i) => searchFrom(points[i]) });
    plot.shown = (point) => !hidden.groups.has(point.group) && !hidden.sides.has(point.text ? "text" : "image");
    view.plot = plot; // for whoever measures how long a frame takes
    onTheme(() => { if (loaded) { drawLegend(); plot.restyle(); } });
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
    busy.replaceChildren(make("p", { role: "status" }, text), progress === null ? "" : make("div", { class: "bar", role: "progressbar", "aria-label": "Progress of the map", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * progress), vars: { share: progress } }, make("i")), note ? make("p", {}, note) : "");
  }

  function take(answer) {
    points = answer.points;
    busy.hidden = true;
    if (!points.length) { busy.hidden = false; busy.replaceChildren(make("p", {}, "There is nothing in the index yet.")); }
    if (answer.note) lead.textContent = answer.note;
    const names = new Map();
    const nameOf = (point) => (colour === "slot" ? `element ${point.slot + 1}` : point.label || "no label");
    for (const point of points) names.set(nameOf(point), (names.get(nameOf(point)) ?? 0) + 1);
    const entries = [...names].sort((a, b) => (colour === "slot" ? a[0].localeCompare(b[0], "en", { numeric: true }) : (a[0] === "no label") - (b[0] === "no label") || b[1] - a[1]));
    // Colours beyond the seventh would not be told apart: what comes after shares a grey.
    const place = new Map(entries.map(([name], i) => [name, name === "no label" ? COLOURS : Math.min(i, COLOURS)]));
    groups = [];
    for (const [name, number] of entries) {
      const at = place.get(name);
      if (groups[at]) Object.assign(groups[at], { name: "others", number: groups[at].number + number });
      else groups[at] = { name, number };
    }
    hidden.groups.clear();
    plot.set(points.map((point) => ({ x: point.x, y: -point.y, text: point.side === "text", group: place.get(nameOf(point)), item: `${point.side} ${point.id}` })));
    drawLegend();
    announce(`${count(points.length)} points on the map`);
  }

  function drawLegend() {
    const line = (shape, fill, name, number, set, key) => make("li", {}, make("button", { type: "button", class: "line", "aria-pressed": String(!set.has(key)), onclick: (event) => {
      if (!set.delete(key)) set.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(!set.has(key)));
      plot.point(-1);
      plot.redraw();
    } }, mark(shape, fill), make("span", {}, name), make("small", {}, count(number))));
    legend.replaceChildren(
      make("div", {}, make("h2", {}, colour === "slot" ? "Element of the set" : "Label"), make("ul", {}, groups.map((group, i) => group && line("square", colourOf(i), group.name, group.number, hidden.groups, i)).filter(Boolean))),
      make("div", {}, make("h2", {}, "Kind"), make("ul", {}, SIDES.map(([side, name, shape]) => [side, name, shape, points.filter((point) => point.side === side).length]).filter((each) => each[3])
        .map(([side, name, shape, number]) => line(shape, "currentColor", name, number, hidden.sides, side)))));
  }

  function tell(i) {
    tip.hidden = i < 0;
    if (i < 0) return;
    const point = points[i], [x, y] = plot.at(i);
    if (tip.dataset.of !== `${i}`) {
      tip.dataset.of = `${i}`;
      tip.replaceChildren(...(point.side === "image" ? [picture(api.imageOf(point.id), { size: 160, lazy: false })] : []),
        make("div", {}, point.caption || point.id, make("small", {}, `${point.side === "image" ? "picture" : "caption"}, element ${point.slot + 1}${point.label ? ` · ${point.label}` : ""}`)));
      if (document.activeElement === canvas) announce(`${point.side === "image" ? "Picture" : "Caption"}: ${point.caption || point.id}, element ${point.slot + 1}`);
    }
    const left = x + 16 + tip.offsetWidth > plot.width ? x - 16 - tip.offsetWidth : x + 16;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, Math.min(y + 12, plot.height - tip.offsetHeight - 6))}px)`;
  }

  return {
    show: () => { if (!plot) build(); load(); },
    hide: () => { clearTimeout(timer); controller?.abort(); plot?.point(-1); },
  };
}
