// How to search: what to find, how exactly, and what is done with the results.
import { byId, icon, make } from "./dom.js";

/** changed(part of a query); toggleFilters() returns whether they are open now. Returns show(query, filtered). */
export function startOptions({ modes, sides }, changed, toggleFilters) {
  const choice = (name, legend, entries) =>
    make(
      "fieldset",
      { class: "choice" },
      make("legend", { class: "unseen" }, legend),
      entries.map(([value, said]) =>
        make(
          "label",
          {},
          make("input", { type: "radio", name, value, onchange: () => changed({ [name]: value }) }),
          make("span", {}, said),
        ),
      ),
    );
  const toggle = (name, said, why) =>
    make(
      "label",
      { class: "switch", title: why },
      make("input", {
        type: "checkbox",
        role: "switch",
        name,
        onchange: (event) => changed({ [name]: event.target.checked }),
      }),
      said,
    );
  const tally = make("span", { class: "tally", hidden: true });
  const filters = make(
    "button",
    {
      type: "button",
      class: "button small",
      "aria-expanded": "false",
      "aria-controls": "filters",
      onclick: () => {
        filters.setAttribute("aria-expanded", String(toggleFilters()));
      },
    },
    icon("filter"),
    "Filters",
    tally,
  );
  const bar = byId("options");
  bar.replaceChildren(
    ...(sides.length > 1
      ? [
          choice("find", "What to find", [
            ["image", "Pictures"],
            ["text", "Captions"],
          ]),
        ]
      : []),
    ...(modes.length > 1
      ? [
          choice("mode", "How to search", [
            ["exact", "Exact"],
            ["fast", "Fast"],
          ]),
        ]
      : []),
    filters,
    toggle("relevant", "Relevance line", "A line where results begin to score like unrelated ones"),
    toggle("dedupe", "Fold duplicates", "Show near-duplicates as one result"),
  );
  return (query, filtered) => {
    for (const input of bar.querySelectorAll("input")) {
      input.checked = input.type === "radio" ? query[input.name] === input.value : query[input.name];
    }
    tally.hidden = !filtered;
    tally.replaceChildren(String(filtered || ""), make("span", { class: "unseen" }, " in use"));
  };
}
