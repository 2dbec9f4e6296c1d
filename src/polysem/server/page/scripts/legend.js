// What the colours and shapes of the map stand for, and which of them are shown.
import { count, make, mark } from "./dom.js";
import { colourOf, COLOURS } from "./palette.js";

const SIDES = [
  ["image", "pictures", "circle"],
  ["text", "captions", "triangle"],
];
const REST = new Set(["no label", "other"]); // "other" is what the server calls labels too rare to name

const nameOf = (point, colour) => (colour === "slot" ? `element ${point.slot + 1}` : point.label || "no label");

/** The groups that colours tell apart: { groups: [{ name, number }] by colour, groupOf(point) }. */
export function grouped(points, colour) {
  const names = new Map();
  for (const point of points) names.set(nameOf(point, colour), (names.get(nameOf(point, colour)) ?? 0) + 1);
  const isRest = (name) => colour === "label" && REST.has(name);
  const entries = [...names].sort(([a, ofA], [b, ofB]) =>
    colour === "slot" ? a.localeCompare(b, "en", { numeric: true }) : isRest(a) - isRest(b) || ofB - ofA,
  );
  // Colours beyond the seventh would not be told apart: what comes after shares a grey.
  const place = new Map(entries.map(([name], i) => [name, isRest(name) ? COLOURS : Math.min(i, COLOURS)]));
  const groups = [];
  for (const [name, number] of entries) {
    const at = place.get(name);
    if (groups[at]) Object.assign(groups[at], { name: "others", number: groups[at].number + number });
    else groups[at] = { name, number };
  }
  return { groups, groupOf: (point) => place.get(nameOf(point, colour)) };
}

/** hidden: { groups, sides }, sets that the buttons change; changed() is called when they have. */
export function legendOf(points, colour, groups, hidden, changed) {
  const line = (shape, fill, name, number, set, key) => {
    const toggle = (event) => {
      if (!set.delete(key)) set.add(key);
      event.currentTarget.setAttribute("aria-pressed", String(!set.has(key)));
      changed();
    };
    const button = make(
      "button",
      { type: "button", class: "line", "aria-pressed": String(!set.has(key)), onclick: toggle },
      mark(shape, fill),
      make("span", {}, name),
      make("small", {}, count(number)),
    );
    return make("li", {}, button);
  };
  const part = (title, lines) => make("div", {}, make("h2", {}, title), make("ul", {}, lines));
  const there = (side) => points.filter((point) => point.side === side).length;
  return [
    part(
      colour === "slot" ? "Element of the set" : "Label",
      groups.map((group, i) => line("square", colourOf(i), group.name, group.number, hidden.groups, i)).filter(Boolean),
    ),
    part(
      "Kind",
      SIDES.filter(([side]) => there(side)).map(([side, name, shape]) =>
        line(shape, "currentColor", name, there(side), hidden.sides, side),
      ),
    ),
  ];
}
