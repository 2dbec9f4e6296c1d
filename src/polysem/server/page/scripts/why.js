// "Why this?": a dialog on one result, with its explanation against the query or against any other words.
import * as api from "./api.js";
import { byId, chance, icon, make, score } from "./dom.js";
import { explanation } from "./explanation.js";
import { picture } from "./images.js";
import { player } from "./playing.js";
import { notice } from "./problems.js";
import { askForToken } from "./token.js";

/** acts: { closed(), like(result) }. Returns { open(result, query), close() }. */
export function startWhy(known, acts) {
  const dialog = byId("why");
  let current = null,
    controller = null;

  dialog.addEventListener("close", () => {
    dialog.querySelector("video")?.pause();
    if (current) {
      current = null;
      controller?.abort();
      acts.closed();
    }
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });

  function open(result, query) {
    if (current?.id === result.id && dialog.open) return;
    current = result;
    const body = make("div", { class: "why-body" }),
      line = make("p", {}, result.id);
    dialog.replaceChildren(
      make(
        "header",
        { class: "why-head" },
        make("div", {}, make("h2", { id: "why-title", tabindex: "-1" }, "Why this?"), line),
        make(
          "button",
          { type: "button", class: "icon", "aria-label": "Close", title: "Close", onclick: () => dialog.close() },
          icon("close"),
        ),
      ),
      body,
    );
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    byId("why-title").focus();
    fill(result, query, body, line);
  }

  /** What the explanation is asked for: the picture and the words, or a text of the index. */
  function asked(result, query) {
    if (result.side === "image") {
      if (query.text) return { item: result.id, text: query.text };
      if (query.item !== null && query.side === "text") return { item: result.id, with: query.item };
      return result.caption ? { item: result.id, text: result.caption } : null;
    }
    if (query.item !== null && query.side === "image") return { item: query.item, with: result.id };
    return typeof result.metadata?.item === "string" ? { item: result.metadata.item, with: result.id } : null;
  }

  async function fill(result, query, body, line) {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    if (result.score === undefined) {
      // opened from a link: the result is not on the page
      try {
        result = { ...(await api.item(result.id, result.side, signal)), side: result.side };
      } catch (error) {
        if (error.name !== "AbortError") body.replaceChildren(notice(error, () => fill(result, query, body, line)));
        return;
      }
    }
    const request = asked(result, query);
    const pictured = result.side === "image" ? result.id : (request?.item ?? null);
    const right = make("div", {}),
      left = make("div", { class: "why-left" });
    body.replaceChildren(left, right);
    const name = result.caption || result.id,
      moving = result.video && pictured === result.id ? player(result, { name }) : null;
    const stand = make(
      "div",
      { class: moving ? "heat moving" : "heat" },
      pictured === null
        ? null
        : (moving ?? picture(api.imageOf(pictured), { size: 960, alt: name, lazy: false, at: result.moment?.time })),
    );
    left.append(...(pictured === null ? [] : [stand]), facts(result), deeds(result));
    if (request === null) {
      byId("why-title").textContent = "Details";
      right.append(
        make(
          "section",
          {},
          make("h3", {}, result.caption || result.id),
          make(
            "p",
            { class: "small" },
            "An explanation needs a picture and words. Search pictures by words to see one.",
          ),
        ),
      );
      return;
    }
    const note =
      pictured === result.id && !query.text && request.text
        ? "This was found by a picture. Here it is against its own caption."
        : result.side === "text" && pictured !== query.item
          ? "This was found among captions. Here it is against its own picture."
          : null;
    line.textContent = request.text ? `“${request.text}”` : `${result.caption || result.id}`;
    const words = make("input", {
      class: "entry",
      value: "",
      placeholder: "other words",
      "aria-label": "Explain with other words",
      maxlength: "1000",
    });
    const place = make("div", {});
    right.append(
      ...(note ? [make("p", { class: "small" }, note)] : []),
      place,
      make(
        "section",
        {},
        make("h3", {}, "Against other words"),
        make(
          "form",
          {
            class: "ask",
            onsubmit: (event) => {
              event.preventDefault();
              if (!words.value.trim()) return;
              line.textContent = `“${words.value.trim()}”`;
              tell({ item: request.item, text: words.value.trim() });
              dialog.scrollTo({ top: 0 });
            },
          },
          words,
          make("button", { type: "submit", class: "button" }, "Explain"),
        ),
      ),
    );

    async function tell(asking) {
      place.replaceChildren(make("p", { class: "small", role: "status" }, "Looking inside…"));
      try {
        const told = await api.explain(asking, signal);
        const shown = explanation(told, stand, api.imageOf(request.item), moving && seek(moving));
        const match = typeof told.match === "number" ? ` · ${chance(told.match)}` : "";
        line.textContent = `${line.textContent.split(" · ")[0]} · score ${score(told.score)}${match}`;
        left.querySelector(".reading")?.remove();
        stand.after(shown.reading);
        place.replaceChildren(...shown.sections);
      } catch (error) {
        if (error.name !== "AbortError") place.replaceChildren(notice(error, () => tell(asking)));
      }
    }
    await tell(request);
  }

  /** Shows a second of the video that stands on the left. */
  const seek = (moving) => (seconds) => {
    moving.pause();
    moving.currentTime = seconds;
  };

  function facts(result) {
    const rows = [
      ["id", result.id],
      ["caption", result.side === "image" ? result.caption : null],
      ["labels", (result.labels ?? []).join(", ")],
      ...Object.entries(result.metadata ?? {}).map(([name, value]) => [
        name,
        typeof value === "object" ? JSON.stringify(value) : String(value),
      ]),
    ];
    return make(
      "dl",
      { class: "facts" },
      rows.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
    );
  }

  function deeds(result) {
    const row = make(
      "div",
      { class: "chips" },
      make(
        "button",
        {
          type: "button",
          class: "button small",
          onclick: () => {
            current = null;
            dialog.close();
            acts.like(result);
          },
        },
        icon("like"),
        "More like this",
      ),
    );
    if (known.writable)
      row.append(
        make(
          "button",
          { type: "button", class: "button small", onclick: (event) => remove(result, row, event.target) },
          "Remove…",
        ),
      );
    return row;
  }

  /** Asks once more, then removes; asks for the token if the server does. */
  function remove(result, row, button) {
    if (button.dataset.sure === undefined) {
      button.dataset.sure = "";
      button.textContent = "Remove from the index for good";
      return;
    }
    const attempt = () =>
      api.removeItem(result.id, result.side).then(
        () => {
          row.replaceChildren(
            make("p", { class: "small", role: "status" }, "Removed. Search again to see the results without it."),
          );
        },
        (error) => (error.status === 401 ? askForToken(attempt) : row.after(notice(error, attempt))),
      );
    attempt();
  }

  return {
    open,
    close: () => {
      if (dialog.open) {
        current = null;
        controller?.abort();
        dialog.close();
      }
    },
  };
}
