// The model: how diverse its sets are, which slots work, what it retrieves, and what the index makes of it.
import * as api from "./api.js";
import { byId, bytes, count, make } from "./dom.js";
import { figuresOf, measures, sideBySide, table } from "./figures.js";
import { notice } from "./problems.js";

/** known: the statistics of the index. Returns { show(), hide() }. */
export function startModel(known) {
  const view = byId("view-model");
  let controller = null;

  function frame(...parts) {
    view.replaceChildren(
      make("h1", { id: "model-title", tabindex: "-1" }, known.model?.name || "The model"),
      make("p", { class: "lead" }, "What it was measured to do, and on what."),
      tiles(known),
      ...parts.filter(Boolean),
    );
  }

  async function load() {
    controller?.abort();
    controller = new AbortController();
    try {
      const told = await api.model(controller.signal);
      frame(
        sets(told),
        slots(told),
        retrieval(told),
        recall(told.audit, told.audit_outdated),
        index(known),
        making(told),
      );
    } catch (error) {
      if (error.name !== "AbortError")
        frame(notice(error, load), recall(known.audit, known.audit_outdated), index(known));
    }
  }

  return {
    show: () => {
      if (!view.firstChild) frame(make("p", { class: "lead", role: "status" }, "Measuring…"));
      load();
    },
    hide: () => controller?.abort(),
  };
}

const panel = (title, text, ...parts) =>
  make("section", { class: "panel" }, make("h2", {}, title), text && make("p", {}, text), ...parts);

function tiles({ items, model }) {
  const sizes = model?.sets ?? {};
  const shown = [
    ["pictures", count(items.image ?? 0)],
    ["captions", count(items.text ?? 0)],
    ["vectors for a picture, for a text", `${sizes.image ?? "–"} · ${sizes.text ?? "–"}`],
    ["dimensions", model?.dim ?? "–"],
    ["similarity", similarityName(model?.similarity)],
  ];
  return make(
    "div",
    { class: "tiles" },
    shown.map(([name, value]) => make("div", { class: "tile" }, make("b", {}, String(value)), make("span", {}, name))),
  );
}

const similarityName = (given) =>
  (typeof given === "string" ? given : (given?.name ?? given?.kind ?? "–")).replaceAll("_", " ");

function sets({ sets: told, sample }) {
  if (!told || !(told.image || told.text))
    return panel(
      "Set diversity",
      sample?.image || sample?.text
        ? "Each item is one vector: there is nothing to be diverse."
        : "There is nothing in the index yet to measure it on.",
    );
  return panel(
    "Set diversity",
    "Circular variance of a set: 0 if all its vectors are the same, towards 1 if they point everywhere. " +
      "Within sets: how much of all variance lies inside items, not between them.",
    sideBySide(told, sample, (side) =>
      measures(
        [
          ["variance", side.variance, side.variance.toFixed(3)],
          ["within sets", side.within, percent(side.within)],
        ],
        `log variance ${side.log_variance.toFixed(2).replace("-", "−")}`,
      ),
    ),
  );
}

function slots({ slots: told, sample }) {
  if (!told || !(told.image || told.text)) return null;
  return panel(
    "Slot usage",
    "How often each element of the set is in the closest pair of a picture and its caption.",
    sideBySide(
      told,
      { image: sample?.pairs, text: sample?.pairs },
      (side) =>
        measures(
          side.wins.map((share, i) => [`element ${i + 1}`, share, percent(share)]),
          `effective number of elements, by the gradient they get: ${side.effective.toFixed(1)} of ${side.wins.length}`,
        ),
      "pair",
    ),
  );
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

function retrieval(told) {
  const list = Object.keys(told.figures ?? {}).length ? [told.figures] : [];
  if (!list.length) return panel("Retrieval", "The model carries no figures. polysem eval measures some.");
  return panel(
    "Retrieval",
    null,
    list.map((each) => {
      const { figures, total, stamp } = figuresOf(each);
      return make(
        "div",
        {},
        table("Retrieval figures", figures),
        total && make("p", { class: "stamp" }, total),
        stamp && make("p", { class: "stamp" }, "Measured on ", make("code", {}, stamp)),
      );
    }),
  );
}

function recall(audit, outdated) {
  if (!audit?.recall)
    return panel(
      "Recall of the fast mode",
      "Not audited yet: polysem verify measures how much of the exact answer the fast mode finds.",
    );
  const rows = Object.entries(audit.recall).map(([way, found]) => ({
    "": way,
    "recall@10": found.recall10.toFixed(3),
    worst: found.worst.toFixed(2),
    queries: count(found.queries),
    "exact, ms": found.exact_ms?.toFixed(1) ?? "–",
    "fast, ms": found.fast_ms?.toFixed(1) ?? "–",
  }));
  const when = audit.measured ? new Date(1000 * audit.measured).toISOString().slice(0, 10) : null;
  return panel(
    "Recall of the fast mode",
    "The share of the ten best that the fast mode finds too, measured on this very index. Exact is always complete.",
    table("Audited recall", rows),
    make(
      "p",
      { class: "stamp" },
      [
        audit.candidates && `${count(audit.candidates)} candidates`,
        when && `measured ${when}`,
        outdated && "the index has changed since: polysem verify measures again",
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
}

function index(known) {
  const rows = [
    ["fingerprint", known.model?.fingerprint],
    ["on disk", known.bytes ? bytes(known.bytes) : null],
    ["modes", (known.modes ?? []).join(", ")],
    ["written to", known.writable ? "with the token" : "not through this server"],
    ["polysem", known.version],
  ];
  return panel(
    "The index",
    null,
    make(
      "dl",
      { class: "facts" },
      rows
        .filter(([, value]) => value)
        .flatMap(([name, value]) => [
          make("dt", {}, name),
          make("dd", {}, name === "fingerprint" ? make("code", {}, value) : value),
        ]),
    ),
  );
}

function making(told) {
  const provenance = told.model?.provenance;
  if (!provenance || !Object.keys(provenance).length) return null;
  return panel(
    "How it was made",
    null,
    make(
      "details",
      {},
      make("summary", {}, "Recipe, data and versions"),
      make("pre", { tabindex: "0", role: "region", "aria-label": "Provenance" }, JSON.stringify(provenance, null, 2)),
    ),
  );
}
