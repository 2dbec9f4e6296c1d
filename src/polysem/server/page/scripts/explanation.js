// What the server tells of a match, as elements, words and the matrix of contributions.
import { make, score } from "./dom.js";
import { drawBars, film } from "./film.js";
import { drawGlow, drawHeat, drawScale } from "./heat.js";
import { picture } from "./images.js";
import { chooseRow, matrix } from "./matrix.js";

const PLACED = new Set(["grid", "boxes"]);
// Signs of a tokenizer, such as the start of a sentence, are read like words but are none.
const SIGN = /^(\[[A-Z]+\]|<\/?[a-z]+>)$/;
const HOW = {
  attention: "Bright is what the element reads most: its attention.",
  pooling: "Bright is what the vector is made of: its pooling weights.",
  omission: "Bright is what changes the vector most when it is left out.",
  score: "Bright is where hiding the picture lowers the score most.",
};
const HOW_FRAMES = {
  attention: "Bars are what an element reads of each frame: its attention.",
  pooling: "Bars are how much of each frame the vector is made of: its pooling weights.",
  omission: "Bars are how far the vector turns when the frame is left out.",
  score: "Bars are how far the score falls when the frame is left out.",
};

const HOW_MAP = {
  sum: "Bright is what of the picture adds to the score of these words.",
  omission: "Bright is what the score of these words misses most when it is hidden.",
};
const nameOf = (map) => (map.phrase ? `“${map.phrase}”` : "all of it");

/** stand: where the large picture is. seek(seconds): shows that of a video, if it is one that plays. Returns
 *  { reading: what stands below it, sections: the rest }. */
export function explanation(told, stand, address, seek = null) {
  if (told.film) return ofFilm(told, address, seek);
  const ratio = told.width && told.height ? told.width / told.height : 1;
  const large = canvasOf(ratio);
  stand.querySelector("canvas")?.remove();
  stand.append(large);
  stand.style.aspectRatio = ratio;
  const placed = told.elements.some((element) => PLACED.has(element.attention?.kind));
  stand.classList.toggle("on", placed);
  // The maps of the words: of the first thing they name, of the others, and of all of them.
  const maps = (told.maps ?? []).filter((map) => PLACED.has(map.attention?.kind));
  maps.push(...maps.splice(0, 1));
  let chosen = maps.length ? maps[0] : 0, // a map, or the number of an element
    step = null; // step: an iteration; null is the last, which made the embedding
  const attentionOf = (element) =>
    step === null ? element.attention : (element.iterations[step] ?? element.attention);
  const small = told.elements.map(() => canvasOf(ratio));

  const shown = small.map((canvas) =>
    make("span", { class: placed ? "heat on" : "heat" }, picture(address, { size: 480, lazy: false }), canvas),
  );
  const parts = elementsOf(told, "picture", shown, choose, { vars: { ratio } });

  /** what: a map, or the number of an element. */
  function choose(what) {
    chosen = what;
    const map = typeof what === "number" ? null : what;
    parts.mark(map ? null : what);
    stand.classList.toggle("glow", map !== null);
    if (map) drawGlow(large, brightness(map));
    else drawHeat(large, attentionOf(told.elements[what]), told.scale);
    named.textContent = map ? nameOf(map) : `Element ${what + 1}`;
    ends[0].textContent = share3(map ? 0 : told.scale.min);
    ends[1].textContent = share3(map ? Math.max(0, map.max) : told.scale.max);
    said.textContent = map ? HOW_MAP[map.how] : HOW[told.how];
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(maps[i] === map)));
  }
  function draw() {
    told.elements.forEach((element, i) => drawHeat(small[i], attentionOf(element), told.scale));
    choose(chosen);
  }

  const bar = make("canvas", { role: "img", "aria-label": "Colours from little to much" }),
    named = make("strong", {}),
    ends = [make("span", {}), make("span", {})],
    said = make("p", { class: "small" }),
    tabs = maps.map((map) =>
      make(
        "button",
        { type: "button", class: "button small", "aria-pressed": "false", onclick: () => choose(map) },
        `Where is ${nameOf(map)}?`,
      ),
    );
  drawScale(bar);
  const reading = make(
    "div",
    { class: "reading" },
    placed
      ? [
          make("div", { class: "scale" }, named, ends[0], bar, ends[1]),
          tabs.length ? make("div", { class: "chips" }, tabs) : null,
          steps(told, (place) => {
            step = place;
            draw();
          }),
          said,
        ]
      : make("p", { class: "small" }, "Where the elements look is not known: these features carry no places."),
  );
  draw();
  return { reading, sections: parts.sections };
}

/** The elements of an item, each a button that calls choose(its number), and the matrix of contributions. shown: what
 *  stands on each button. Returns { sections, mark(number): shows which one is chosen }. */
function elementsOf(told, what, shown, choose, attributes = {}) {
  const buttons = told.elements.map((element, i) =>
    make(
      "button",
      { type: "button", class: "element", "aria-pressed": "false", onclick: () => choose(i), ...attributes },
      shown[i],
      make("span", { class: "name" }, `Element ${i + 1}`, make("small", {}, share(told, i))),
      element.words?.length ? wordsOf(element.words) : null,
      element.nearest_caption &&
        make("span", { class: "near" }, make("small", {}, "nearest caption"), `“${element.nearest_caption.text}”`),
    ),
  );
  const table = matrix({
    contributions: told.contributions,
    score: told.score,
    columns: (told.text?.elements ?? []).map((each) => strongest(each.words)),
  });
  const title = buttons.length > 1 ? `The ${buttons.length} elements of this ${what}` : `The one vector of this ${what}`;
  const list = make(
    "ul",
    { class: "elements" },
    buttons.map((button) => make("li", {}, button)),
  );
  return {
    sections: [make("section", {}, make("h3", {}, title), list), table],
    mark(number) {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
      chooseRow(table, number);
    },
  };
}

/** Of a video: its frames in a row, and for each element what it takes from them. */
function ofFilm(told, address, seek) {
  const strip = film(told, seek && address, seek),
    bars = told.elements.map(() => make("canvas", { class: "bars", "aria-hidden": "true" }));
  const shown = bars.map((canvas) => make("span", { class: "heat plain" }, canvas));
  const parts = elementsOf(told, "video", shown, choose);
  function choose(number) {
    parts.mark(number);
    strip.choose(told.elements[number].attention?.values ?? []);
  }
  // Once they are on the page: colours of the theme are known there.
  requestAnimationFrame(() => {
    told.elements.forEach((element, i) => drawBars(bars[i], element.attention?.values ?? [], told.scale.max));
  });
  choose(0);
  return {
    reading: make("div", { class: "reading" }, make("p", { class: "small" }, HOW_FRAMES[told.how])),
    sections: [strip.section, ...parts.sections],
  };
}

const canvasOf = (ratio) => Object.assign(make("canvas", { "aria-hidden": "true" }), { ratio });
const share3 = (value) => value.toFixed(value < 0.1 ? 3 : 2);
const bright = (value, most) => Math.sqrt(Math.max(0, value) / Math.max(most, 1e-12));

/** A map of words as shares from 0 to 1, by their root: half of the largest is well seen. */
function brightness(map) {
  const placed = map.attention;
  if (placed.kind === "grid")
    return { ...placed, values: placed.values.map((row) => row.map((value) => bright(value, map.max))) };
  return { ...placed, boxes: placed.boxes.map(([x0, y0, x1, y1, value]) => [x0, y0, x1, y1, bright(value, map.max)]) };
}

const share = (told, i) => {
  const sum = told.contributions[i]?.reduce((a, b) => a + b, 0);
  return sum === undefined ? "" : `adds ${score(sum)}`;
};

/** The words of the query, each as strong as the element answers to it. */
function wordsOf(all) {
  const words = all.some(({ word }) => !SIGN.test(word)) ? all.filter(({ word }) => !SIGN.test(word)) : all;
  const most = Math.max(1e-9, ...words.map((each) => each.weight));
  return make(
    "span",
    { class: "words" },
    words.map(({ word, weight }) =>
      make(
        "span",
        {
          class: weight === most ? "strong" : null,
          vars: { share: Math.max(0, weight / most).toFixed(3) },
          title: `${word}: ${weight.toFixed(3)}`,
        },
        word,
      ),
    ),
  );
}

function strongest(words = []) {
  return words
    .filter(({ word }) => /[\p{L}\p{N}]/u.test(word) && !SIGN.test(word))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 2)
    .map((each) => each.word)
    .join(", ");
}

/** A slider over the iterations, where slots compete in several. */
function steps(told, moved) {
  const last = (told.elements[0]?.iterations?.length ?? 1) - 1;
  if (last < 1) return null;
  const said = make("span", { class: "number" }, `${last + 1} of ${last + 1}`);
  return make(
    "label",
    { class: "steps" },
    "Iteration",
    make("input", {
      type: "range",
      min: 0,
      max: last,
      value: last,
      oninput: (event) => {
        const place = Number(event.target.value);
        said.textContent = `${place + 1} of ${last + 1}`;
        moved(place === last ? null : place);
      },
    }),
    said,
  );
}
