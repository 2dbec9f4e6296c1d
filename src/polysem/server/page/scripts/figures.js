// Tables and bars of measured figures.
import { make, many } from "./dom.js";

const WAYS = { i2t: "picture to text", t2i: "text to picture" };

/** A bar for each [name, share, text]; what it adds up to, or means, below. */
export function measures(rows, foot) {
  return [
    make(
      "ul",
      { class: "measures" },
      rows.map(([name, share, text]) =>
        make(
          "li",
          {},
          make("span", {}, name),
          make(
            "span",
            { class: "bar", "aria-hidden": "true", vars: { share: Math.min(1, Math.max(0, share)) } },
            make("i"),
          ),
          make("span", { class: "number" }, text),
        ),
      ),
    ),
    make("p", { class: "stamp" }, foot),
  ];
}

/** draw(side) for the pictures and for the texts, where there is something to draw. */
export function sideBySide(told, sample, draw, unit = "item") {
  return make(
    "div",
    { class: "sides" },
    [
      ["image", "Pictures"],
      ["text", "Captions"],
    ]
      .filter(([side]) => told[side])
      .map(([side, name]) =>
        make(
          "div",
          {},
          make("h3", {}, name, sample?.[side] ? make("small", {}, `on ${many(sample[side], unit)}`) : null),
          draw(told[side]),
        ),
      ),
  );
}

/** rows: objects with the same keys; the first names the row. */
export function table(caption, rows) {
  const names = Object.keys(rows[0]);
  return make(
    "div",
    { class: "figures", tabindex: "0", role: "region", "aria-label": caption },
    make(
      "table",
      {},
      make("caption", { class: "unseen" }, caption),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          names.map((name, i) => (i || name ? make("th", { scope: "col" }, name) : make("td", {}))),
        ),
      ),
      make(
        "tbody",
        {},
        rows.map((row) =>
          make(
            "tr",
            {},
            names.map((name, i) => (i ? make("td", {}, row[name]) : make("th", { scope: "row" }, row[name]))),
          ),
        ),
      ),
    ),
  );
}

/** Figures as a table with a row for each direction; names are like i2t_r1. The rest stands in a row of its own. */
export function figuresOf(given) {
  const stamp = given.stamp ?? (typeof given.protocol === "string" ? given.protocol : given.protocol?.stamp) ?? null;
  const flat = Object.entries(given.figures ?? given).filter(
    ([name, value]) => typeof value === "number" && name !== "step",
  );
  const rows = new Map(),
    alone = {};
  for (const [name, value] of flat) {
    const [, way, metric] = /^(i2t|t2i)[_.](.+)$/.exec(name) ?? [];
    if (!way) {
      alone[name] = value.toFixed(1);
      continue;
    }
    if (!rows.has(way)) rows.set(way, { "": WAYS[way] });
    rows.get(way)[
      metric
        .replace(/^r(\d+)$/i, "R@$1")
        .replace(/^(medr|meanr)$/i, (each) => (each.toLowerCase() === "medr" ? "median rank" : "mean rank"))
    ] = value.toFixed(1);
  }
  const listed = [...rows.values()];
  if (!listed.length) return { figures: [{ "": "measured", ...alone }], stamp };
  const total = Object.entries(alone)
    .map(([name, value]) => `${name} ${value}`)
    .join(" · ");
  return { figures: listed, total, stamp };
}
