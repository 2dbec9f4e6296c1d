// Starts the page: asks what the index holds, then shows the view the address names.
import * as api from "./api.js";
import { byId, count, make, typing } from "./dom.js";
import { picture } from "./images.js";
import { startMap } from "./map.js";
import { startModel } from "./model.js";
import { notice } from "./problems.js";
import { startSearch } from "./search.js";
import { startTheme } from "./theme.js";
import { showToken } from "./token.js";

const HOW = "by words, by a picture, or by something you found.";
const VIEWS = ["search", "map", "model"];
const views = {};
let current = null;

/** The view the address names, or the one given. */
function showView(name = VIEWS.find((view) => location.hash === `#${view}`) ?? "search") {
  if (name === current) return;
  const first = current === null;
  views[current]?.hide?.();
  current = name;
  for (const view of VIEWS) byId(`view-${view}`).hidden = view !== name;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (!Object.keys(views).length) return;
  if (name !== "search") document.title = `${byId(`view-${name}`).dataset.title} · polysem`;
  views[name].show();
  // So that the keyboard, and a screen reader, go on from the top of what is new.
  if (!first && !document.querySelector("dialog[open]"))
    byId(`view-${name}`).querySelector("h1")?.focus({ preventScroll: true });
}

function welcome({ items, filters }) {
  const pictures = items.image ?? 0,
    texts = items.text ?? 0;
  byId("welcome-text").textContent = pictures
    ? `Search ${count(pictures)} pictures${texts ? ` and ${count(texts)} captions` : ""} ${HOW}`
    : texts
      ? `Search ${count(texts)} captions.`
      : "This index is empty. Add pictures with polysem index.";
  examples((filters.image ?? filters.text)?.labels.slice(0, 6).map(([name]) => name) ?? []);
}

/** Searches to begin with, each with the picture it finds first. */
function examples(names) {
  const used = new Set();
  byId("examples").hidden = !names.length;
  byId("examples").replaceChildren(
    ...names.map((name) => {
      const shot = make("span", { class: "shot" });
      if (current === "search" && location.search === "") {
        api.search({ text: name, k: names.length }).then(
          ({ results }) => {
            const own = results.find((each) => each.image && !used.has(each.id));
            if (!own) return;
            used.add(own.id);
            shot.append(picture(own.image, { size: 320 }));
          },
          () => {},
        ); // a beginning without pictures is one all the same
      }
      return make(
        "a",
        {
          class: "example",
          href: `/?${new URLSearchParams({ q: name })}`,
          onclick: (event) => {
            if (event.ctrlKey || event.metaKey || event.shiftKey) return;
            event.preventDefault();
            views.search.go({ text: name });
          },
        },
        shot,
        name,
      );
    }),
  );
}

/** `/#token=…` opens the page with the token; it does not stay in the address, nor in the history. */
async function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + location.search);
  api.setToken(decodeURIComponent(found[1]));
  await api.session();
  showToken();
}

async function start() {
  byId("trouble").replaceChildren();
  let known;
  try {
    await takeToken();
    known = await api.stats();
  } catch (error) {
    byId("trouble").replaceChildren(notice(error, start));
    return;
  }
  welcome(known);
  byId("credits").textContent = known.credits.join(" ");
  byId("credits").hidden = !known.credits.length;
  views.search = startSearch(known, showView);
  views.map = startMap((point) => views.search.go({ item: point.id, side: point.side }));
  views.model = startModel(known);
  views[current].show();
  addEventListener("popstate", () => {
    showView();
    if (current === "search") views.search.show();
  });
  if (current === "search" && matchMedia("(pointer: fine)").matches && location.search === "") views.search.focus();
}

document.addEventListener("keydown", (event) => {
  if (
    event.key !== "/" ||
    typing() ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    document.querySelector("dialog[open]")
  )
    return;
  event.preventDefault();
  if (current !== "search") location.hash = "#search";
  showView("search");
  views.search?.focus();
});
addEventListener("scroll", () => document.body.classList.toggle("scrolled", scrollY > 8), { passive: true });
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("content").focus();
});
startTheme(byId("theme-button"));
showToken();
showView();
start();
