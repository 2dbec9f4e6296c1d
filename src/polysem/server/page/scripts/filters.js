// The panel of filters, made from what the metadata holds.
import { byId, count, make } from "./dom.js";
import { compose, nothing, parse } from "./filter_text.js";

const FEW = 12;

const NONE = { labels: [], metadata: [] };

/** bySide: what pictures and captions can be filtered by; changed(text) is called with the new filter.
 *  Returns { show(text, side), toggle() }. */
export function startFilters(bySide, changed) {
  const panel = byId("filters");
  let choices = nothing(),
    written = "",
    shownSide = null,
    known = NONE;

  const say = () => {
    written = compose(choices);
    changed(written);
    draw();
  };

  function chip(name, number, on, act) {
    return make(
      "button",
      { type: "button", class: "chip", "aria-pressed": String(on), onclick: act, "data-key": name },
      name,
      make("small", {}, count(number)),
    );
  }

  function labels() {
    const all = known.labels,
      picked = new Set(choices.labels);
    const shown = all.filter(([name], place) => place < FEW || picked.has(name) || panel.dataset.all);
    const chips = shown.map(([name, number]) =>
      chip(name, number, picked.has(name), () => {
        choices.labels = picked.has(name) ? choices.labels.filter((each) => each !== name) : [...choices.labels, name];
        say();
      }),
    );
    if (all.length > shown.length) {
      chips.push(
        make(
          "button",
          {
            type: "button",
            class: "chip",
            onclick: () => {
              panel.dataset.all = "1";
              draw();
              panel.querySelectorAll(".chip")[shown.length]?.focus();
            },
          },
          `${all.length - shown.length} more…`,
        ),
      );
    }
    const every = make(
      "select",
      {
        class: "pick",
        "aria-label": "Of the labels chosen",
        onchange: (event) => {
          choices.every = event.target.value === "all";
          say();
        },
      },
      make("option", { value: "all", selected: choices.every }, "all of"),
      make("option", { value: "any", selected: !choices.every }, "any of"),
    );
    return make(
      "fieldset",
      { class: "wide" },
      make("legend", {}, "Label", choices.labels.length > 1 && every),
      make("div", { class: "chips" }, chips),
    );
  }

  function number({ name, min, max }) {
    const [low, high] = choices.numbers[name] ?? [null, null];
    const end = (place, value, said, hint) =>
      make("input", {
        type: "number",
        class: "entry",
        step: "any",
        value: value ?? "",
        placeholder: hint,
        "aria-label": `${name}, ${said}`,
        "data-key": `${name} ${said}`,
        onchange: (event) => {
          const pair = [low, high];
          pair[place] = event.target.value === "" ? null : Number(event.target.value);
          if (pair.every((each) => each === null)) delete choices.numbers[name];
          else choices.numbers[name] = pair;
          say();
        },
      });
    return make(
      "fieldset",
      {},
      make("legend", {}, name),
      make(
        "div",
        { class: "range" },
        end(0, low, "at least", min),
        make("span", { "aria-hidden": "true" }, "–"),
        end(1, high, "at most", max),
      ),
    );
  }

  function chosen({ name, values }) {
    const picked = new Set(choices.values[name] ?? []);
    return make(
      "fieldset",
      {},
      make("legend", {}, name),
      make(
        "div",
        { class: "chips" },
        values.map(([value, number]) =>
          chip(String(value), number, picked.has(value), () => {
            choices.values[name] = picked.has(value) ? [...picked].filter((each) => each !== value) : [...picked, value];
            if (!choices.values[name].length) delete choices.values[name];
            say();
          }),
        ),
      ),
    );
  }

  function draw() {
    const focused = document.activeElement?.dataset?.key;
    const own = make("input", {
      id: "filter-text",
      value: written,
      spellcheck: "false",
      autocomplete: "off",
      placeholder: "label = 'dog' and year > 2020",
      "data-key": "filter text",
    });
    panel.replaceChildren(
      make(
        "div",
        { class: "groups" },
        known.labels?.length ? labels() : null,
        known.metadata.map((each) => (each.kind === "number" ? number(each) : chosen(each))),
      ),
      make(
        "form",
        {
          class: "foot",
          onsubmit: (event) => {
            event.preventDefault();
            show(own.value.trim(), shownSide);
            changed(written);
          },
        },
        make("label", { class: "field", for: "filter-text" }, "As an expression", own),
        make("button", { type: "submit", class: "button" }, "Apply"),
        make(
          "button",
          {
            type: "button",
            class: "button",
            disabled: !written,
            onclick: () => {
              show("", shownSide);
              changed("");
            },
          },
          "Clear",
        ),
      ),
    );
    if (focused) panel.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function show(text, side) {
    if (text === written && side === shownSide) return;
    written = text;
    shownSide = side;
    known = bySide[side] ?? NONE;
    choices = parse(text, known) ?? nothing();
    draw();
  }

  return {
    show,
    toggle: () => {
      panel.hidden = !panel.hidden;
      return !panel.hidden;
    },
  };
}
