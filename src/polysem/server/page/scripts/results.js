// The results: a grid that grows, with the relevance cut as a line, and arrow keys to walk it.
import { imageOf } from "./api.js";
import { byId, chance, icon, make, many, score } from "./dom.js";
import { picture } from "./images.js";
import { poster, startPlaying } from "./playing.js";

/** acts: { why(result), like(result), end() }; end is called when the keyboard walks past the last result. */
export function startResults(acts) {
  const grid = byId("results"),
    playing = startPlaying();
  let best = 1,
    wasRelevant = null;

  function act(name, short, long, drawn, does) {
    return make(
      "button",
      { type: "button", class: "act", "data-act": name, tabindex: "-1", onclick: does },
      icon(drawn),
      make("span", {}, short, long && make("span", { class: "long" }, long)),
    );
  }

  function folded(result) {
    const strip = make("ul", { class: "folded", hidden: true, "aria-label": "Near-duplicates" });
    const button = act("folded", `+${result.duplicates.length}`, " alike", "copies", () => {
      strip.hidden = !strip.hidden;
      button.setAttribute("aria-expanded", String(!strip.hidden));
      if (!strip.firstChild) {
        strip.append(
          ...result.duplicates.map((id) =>
            make(
              "li",
              {},
              make(
                "button",
                { type: "button", title: id, onclick: () => acts.like({ id, side: result.side }) },
                result.side === "image" ? picture(imageOf(id), { size: 160, alt: `More like ${id}` }) : id,
              ),
            ),
          ),
        );
      }
    });
    button.setAttribute("aria-expanded", "false");
    button.title = `${many(result.duplicates.length, "near-duplicate")} folded`;
    return [button, strip];
  }

  function card(result, canExplain) {
    const said = result.caption || result.id,
      does = () => acts.why(result);
    const main =
      result.side === "image"
        ? make(
            "button",
            {
              type: "button",
              class: "shot",
              tabindex: "-1",
              "data-main": "",
              onclick: result.video ? (event) => playing.play(result, event.currentTarget, said) : does,
              "aria-label": `${result.rank}. ${said}${result.moment ? `, ${result.moment.text}` : ""}`,
            },
            poster(result, result.image ?? imageOf(result.id), said),
          )
        : make(
            "button",
            { type: "button", class: "saying", tabindex: "-1", "data-main": "", onclick: does },
            result.image ? picture(result.image, { size: 160 }) : null, // what the caption was written for
            make("span", { class: "caption" }, said),
          );
    const [fold, strip] = result.duplicates?.length ? folded(result) : [];
    return make(
      "li",
      { class: result.relevant === false ? "card below" : "card", "data-id": result.id },
      main,
      make(
        "div",
        { class: "about" },
        result.side === "image" && make("p", { class: "caption" }, said),
        make(
          "div",
          { class: "score", title: "score" },
          make("span", { class: "unseen" }, "score "),
          score(result.score),
          typeof result.match === "number" &&
            make("span", { class: "match", title: "How probable it is that they match, says the model" }, chance(result.match)),
          make(
            "span",
            { class: "bar", "aria-hidden": "true", vars: { share: Math.min(1, Math.max(0, result.score / best)) } },
            make("i"),
          ),
        ),
        make(
          "div",
          { class: "acts" },
          act("why", canExplain ? "Why" : "Details", canExplain && " this?", "why", does),
          act("like", "More", " like this", "like", () => acts.like(result)),
          fold,
        ),
        strip,
      ),
    );
  }

  /** Adds the results of an answer; the line is drawn where relevance ends. */
  function add(results, { cut, canExplain, fresh }) {
    if (fresh) {
      playing.stop();
      best = Math.max(results[0]?.score ?? 1, 1e-9);
      wasRelevant = null;
      grid.replaceChildren();
      grid.className = results[0]?.side === "text" ? "grid texts" : "grid";
    }
    for (const result of results) {
      if (result.relevant === false && wasRelevant !== false) grid.append(line(cut, wasRelevant === null));
      if (typeof result.relevant === "boolean") wasRelevant = result.relevant;
      grid.append(card(result, canExplain));
    }
    if (!grid.querySelector("[data-main][tabindex='0']")) tabTo(cards()[0]);
  }

  function line(cut, first) {
    const doubt = cut && !cut.reliable ? " (a guess: there are few items)" : "";
    const text = first
      ? "Nothing stands out: these score like unrelated items"
      : `${cut ? `${cut.count} relevant above` : "Relevant above"} · below, scores are like those of unrelated items`;
    return make("li", { class: "cut", title: cut?.explained ?? null }, make("span", {}, text + doubt));
  }

  const cards = () => [...grid.querySelectorAll(".card")];

  /** Only one card is in the tab order; the arrow keys choose which. */
  function tabTo(chosen) {
    for (const each of grid.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
    for (const each of chosen?.querySelectorAll("[data-main], .act") ?? []) each.tabIndex = 0;
  }

  grid.addEventListener("focusin", (event) => tabTo(event.target.closest(".card")));
  grid.addEventListener("keydown", (event) => {
    const from = event.target.closest(".card");
    if (!from || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.localName === "video") return; // arrows and space are its own
    const all = cards(),
      place = all.indexOf(from);
    const across = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const column = from.offsetLeft;
    const inColumn = (rest) => rest.find((each) => Math.abs(each.offsetLeft - column) < 4);
    const goals = {
      ArrowRight: () => all[place + 1],
      ArrowLeft: () => all[place - 1],
      Home: () => all[0],
      End: () => all.at(-1),
      ArrowDown: () => inColumn(all.slice(place + 1)),
      ArrowUp: () => inColumn(all.slice(0, place).reverse()),
      PageDown: () => all[Math.min(all.length - 1, place + 3 * across)],
      PageUp: () => all[Math.max(0, place - 3 * across)],
    };
    if (event.key in goals) {
      event.preventDefault();
      const goal = goals[event.key]();
      if (goal) goal.querySelector("[data-main]").focus();
      else if (event.key === "ArrowUp") byId("text").focus();
      if (all.length - all.indexOf(goal ?? from) <= across) acts.end();
    } else if (event.key === "m" || event.key === "M") from.querySelector("[data-act='like']").click();
    else if (event.key === "w" || event.key === "W") from.querySelector("[data-act='why']").click();
  });

  return {
    add,
    clear: () => {
      playing.stop();
      grid.replaceChildren();
      wasRelevant = null;
    },
    waiting: (on) => {
      grid.classList.toggle("waiting", on);
      grid.setAttribute("aria-busy", String(on));
    },
    /** Nothing goes on playing behind a dialog. */
    hush: () => playing.stop(),
    /** Grey places while the first answer is awaited. */
    shades: (find) => {
      playing.stop();
      grid.className = find === "text" ? "grid texts" : "grid";
      grid.replaceChildren(...Array.from({ length: 12 }, () => make("li", { class: "shade", "aria-hidden": "true" })));
    },
    nothing: (title, text) =>
      grid.replaceChildren(make("li", { class: "nothing" }, make("h2", {}, title), make("p", {}, text))),
    focus: (id) => grid.querySelector(`.card[data-id="${CSS.escape(id)}"] [data-main]`)?.focus(),
  };
}
