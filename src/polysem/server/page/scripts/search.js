// A search from the moment it is asked to the last result on the page. Answers that come too late are dropped.
import * as api from "./api.js";
import { fromAddress, isEmpty, NOTHING, sameSearch, toAddress, toBody } from "./address.js";
import { startBox } from "./box.js";
import { announce, byId, count, make, many } from "./dom.js";
import { conditions } from "./filter_text.js";
import { startFilters } from "./filters.js";
import { startOptions } from "./options.js";
import { notice } from "./problems.js";
import { startResults } from "./results.js";
import { startWhy } from "./why.js";

const PAGE = 24,
  MOST = 1000;
const AHEAD = 600; // pixels before the end at which more is fetched
const SETTLED = 1500; // typing that pauses this long begins a new entry in the history

export function startSearch(known, showView) {
  let query = { ...NOTHING },
    asked = 0,
    controller = null;
  let offset = 0,
    of = 0,
    shown = new Map(),
    loading = false,
    lastTyped = 0,
    opened = false;

  const results = startResults({
    why: openWhy,
    like: (result) => go({ ...fresh(), item: result.id, side: result.side, find: query.find }),
    end: more,
  });
  const why = startWhy(known, {
    closed: closeWhy,
    like: (result) => {
      opened = false;
      go({ ...fresh(), item: result.id, side: result.side });
    },
  });
  const box = startBox({
    typed,
    given,
    cleared: () => {
      go({ ...query, ...fresh() });
    },
  });
  const filters = startFilters(known.filters, (filter) => go({ ...query, filter }));
  const sides = Object.keys(known.items).filter((side) => known.items[side]);
  const showOptions = startOptions({ modes: known.modes, sides }, (part) => go({ ...query, ...part }), filters.toggle);
  const status = byId("status"),
    problem = byId("notice"),
    foot = byId("more");

  /** The same search with nothing asked. */
  const fresh = () => ({ ...query, text: "", item: null, image: null, side: "image", why: null });

  function go(next, { replace = false } = {}) {
    if (!sameSearch(next, query)) next = { ...next, why: null };
    history[replace ? "replaceState" : "pushState"](null, "", toAddress(next));
    showView();
    take(next);
  }

  /** Shows what the address says. */
  function take(next) {
    const same = sameSearch(next, query) && asked > 0;
    query = next;
    box.show(query);
    filters.show(query.filter, query.find);
    showOptions(query, conditions(query.filter));
    const empty = isEmpty(query);
    document.body.classList.toggle("searching", !empty);
    const name = query.item !== null ? `like ${query.item}` : query.image !== null ? "by picture" : query.text.trim();
    document.title = name ? `${name} · polysem` : "polysem";
    if (!same) empty ? rest() : run(true);
    syncWhy();
  }

  function rest() {
    controller?.abort();
    asked += 1;
    results.clear();
    results.waiting(false);
    shown = new Map();
    byId("filters").hidden = true;
    for (const place of [status, problem, foot]) place.replaceChildren();
  }

  async function run(first) {
    controller?.abort();
    controller = new AbortController();
    const mine = ++asked,
      from = first ? 0 : offset;
    loading = true;
    if (first) {
      problem.replaceChildren();
      if (!shown.size) results.shades(query.find);
      results.waiting(true);
    } else foot.textContent = "Looking for more…";
    try {
      const answer = await api.search(toBody(query, from, Math.min(PAGE, MOST - from)), controller.signal);
      if (mine !== asked) return;
      loading = false;
      takeIn(answer, first, from);
    } catch (error) {
      if (mine !== asked || error.name === "AbortError") return;
      if (first) {
        results.clear();
        shown = new Map();
        status.textContent = "";
      }
      foot.replaceChildren();
      problem.replaceChildren(notice(error, () => run(first)));
    } finally {
      if (mine === asked) {
        loading = false;
        results.waiting(false);
      }
    }
  }

  function takeIn(answer, first, from) {
    problem.replaceChildren();
    if (first) shown = new Map();
    const found = answer.results.filter((each) => !shown.has(each.id));
    for (const each of found) shown.set(each.id, each);
    offset = from + PAGE;
    of = answer.of;
    results.add(found, { cut: answer.cut, canExplain: explains(), fresh: first });
    tell(answer);
    if (first && !found.length) {
      results.nothing(
        "Nothing found",
        query.filter
          ? "No item passes the filter. Take a part of it away."
          : "There is nothing to search on this side of the index.",
      );
    }
    const last = !answer.results.length || offset >= Math.min(of, MOST);
    foot.replaceChildren(
      ...(!shown.size
        ? []
        : last
          ? [
              of > MOST && offset >= MOST
                ? `The first ${count(MOST)} are shown. Filters reach the others.`
                : shown.size > PAGE / 2
                  ? "That is all."
                  : "",
            ]
          : [make("button", { type: "button", class: "button", onclick: more }, "More results")]),
    );
    if (!first) announce(many(found.length, "more result"));
    fill();
    syncWhy();
  }

  function tell(answer) {
    const { cut } = answer;
    const things = query.find === "image" ? ["picture"] : ["caption"];
    const time = answer.milliseconds ? Object.values(answer.milliseconds).reduce((a, b) => a + (b ?? 0), 0) : null;
    const parts = [many(answer.of, ...things)];
    if (cut)
      parts.push(
        cut.threshold === null && !cut.count
          ? "none stands out"
          : `${count(cut.count)}${cut.complete === false ? "+" : ""} relevant${cut.doubtful ? ", perhaps none" : ""}`,
      );
    parts.push(answer.mode === "fast" ? `fast: ${count(answer.scored)} compared in full` : "exact");
    if (time !== null) parts.push(`${time < 10 ? time.toFixed(1) : count(Math.round(time))} ms`);
    status.textContent = parts.join(" · ");
  }

  function more() {
    if (!loading && shown.size && offset < Math.min(of, MOST)) run(false);
  }
  let inSight = false;
  new IntersectionObserver(
    (seen) => {
      inSight = seen.at(-1).isIntersecting;
      if (inSight) more();
    },
    { rootMargin: `${AHEAD}px` },
  ).observe(foot);

  /** On a large screen the end may still be in sight when more has come, and nothing would tell of it. */
  function fill() {
    requestAnimationFrame(() => {
      if (inSight && foot.getBoundingClientRect().top < innerHeight + AHEAD) more();
    });
  }

  function typed(text, finished) {
    const now = performance.now(),
      going = now - lastTyped < SETTLED && !finished;
    lastTyped = finished ? 0 : now;
    if (!text.trim() && (query.item !== null || query.image !== null)) return; // spaces ask for nothing
    if (text.trim() === query.text.trim() && query.item === null && query.image === null && !isEmpty(query)) {
      if (finished && problem.firstChild) run(true);
      return;
    }
    go({ ...fresh(), text }, { replace: going && !isEmpty(query) });
  }

  async function given(file) {
    const mine = ++asked;
    controller?.abort();
    controller = new AbortController();
    showView("search");
    document.body.classList.add("searching");
    problem.replaceChildren();
    status.textContent = "Reading your picture…";
    results.shades(query.find);
    try {
      const answer = await api.upload(file, controller.signal);
      if (mine === asked) {
        shown = new Map();
        go({ ...fresh(), image: answer.image });
      }
    } catch (error) {
      if (mine !== asked || error.name === "AbortError") return;
      results.clear();
      shown = new Map();
      status.textContent = "";
      problem.replaceChildren(notice(error, () => given(file)));
    }
  }

  // ---------------------------------------------------------------------------------------------- why this?
  const explains = () =>
    query.find === "image"
      ? query.image === null && !(query.item !== null && query.side === "image")
      : query.item !== null && query.side === "image";

  function openWhy(result) {
    results.hush();
    opened = true;
    go({ ...query, why: result.id });
  }

  function syncWhy() {
    if (query.why === null) why.close();
    else if (shown.has(query.why)) why.open(shown.get(query.why), query);
    else if (!loading) why.open({ id: query.why, side: query.find }, query);
  }

  function closeWhy() {
    const id = query.why;
    if (id === null) return;
    if (opened) history.back();
    else go({ ...query, why: null }, { replace: true });
    opened = false;
    requestAnimationFrame(() => results.focus(id));
  }

  return { show: () => take(fromAddress()), focus: box.focus, go: (change) => go({ ...NOTHING, ...change }) };
}
