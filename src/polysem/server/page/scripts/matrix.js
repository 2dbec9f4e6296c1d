// The score taken apart: what each pair of elements adds, and that the parts sum to it.
import { make, score } from "./dom.js";

/** contributions: K rows of L numbers; columns: what each of the L elements of the query reads, or nothing. */
export function matrix({ contributions, score: total, columns = [] }) {
  const most = Math.max(1e-9, ...contributions.flat().map(Math.abs));
  const sums = contributions[0].map((_, column) => contributions.reduce((sum, row) => sum + row[column], 0));
  const cell = (value) =>
    make("td", { class: value < 0 ? "part minus" : "part", vars: { share: Math.abs(value) / most } }, score(value));
  const several = sums.length > 1;
  const table = make(
    "table",
    {},
    make("caption", { class: "unseen" }, "What each pair of elements adds to the score"),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("td", { class: "sum" }),
        sums.map((_, i) => make("th", { scope: "col" }, `text ${i + 1}`, columns[i] && make("small", {}, columns[i]))),
        several && make("th", { scope: "col" }, "sum"),
      ),
    ),
    make(
      "tbody",
      {},
      contributions.map((row, i) =>
        make(
          "tr",
          { "data-element": i },
          make("th", { scope: "row" }, `element ${i + 1}`),
          row.map(cell),
          several && make("td", { class: "sum" }, score(row.reduce((a, b) => a + b, 0))),
        ),
      ),
      contributions.length > 1 &&
        make(
          "tr",
          {},
          make("th", { scope: "row" }, "sum"),
          sums.map((value) => make("td", { class: "sum" }, score(value))),
          several && make("td", { class: "whole" }, score(sums.reduce((a, b) => a + b, 0))),
        ),
    ),
  );
  return make(
    "section",
    {},
    make("h3", {}, "Where the score comes from"),
    make("div", { class: "matrix", tabindex: "0", role: "region", "aria-label": "Contributions to the score" }, table),
    make(
      "p",
      { class: "small" },
      `Elements of the picture down, of the text across. Together they make the score, ${score(total)}.`,
    ),
  );
}

/** Marks the row of one element. */
export function chooseRow(part, number) {
  for (const row of part.querySelectorAll("[data-element]"))
    row.classList.toggle("chosen", Number(row.dataset.element) === number);
}
