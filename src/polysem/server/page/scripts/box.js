// The search box: words as they are typed; a picture chosen, dropped or pasted.
import { byId, make } from "./dom.js";
import { imageOf, thumbnailOf } from "./api.js";
import { picture } from "./images.js";

const PAUSE = 160;

/** typed(text, finished) as words change; given(file) for a picture; cleared(). Returns { show(query), focus() }. */
export function startBox({ typed, given, cleared }) {
  const input = byId("text"),
    file = byId("file"),
    clear = byId("clear"),
    drop = byId("drop"),
    asked = byId("asked");
  let timer = null;
  const stop = () => {
    clearTimeout(timer);
    timer = null;
  };

  input.addEventListener("input", (event) => {
    stop();
    clear.hidden = !input.value && asked.hidden;
    if (!event.isComposing)
      timer = setTimeout(() => {
        timer = null;
        typed(input.value, false);
      }, PAUSE);
  });
  input.addEventListener("compositionend", () => input.dispatchEvent(new Event("input")));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && !input.value && !asked.hidden) cleared();
    else if (event.key === "ArrowDown") {
      const first = document.querySelector("#results [tabindex='0']");
      if (first) {
        event.preventDefault();
        first.focus();
      }
    } else if (event.key === "Escape" && (input.value || !asked.hidden)) {
      event.preventDefault();
      stop();
      cleared();
    }
  });
  byId("box").addEventListener("submit", (event) => {
    event.preventDefault();
    stop();
    typed(input.value, true);
  });
  clear.addEventListener("click", () => {
    stop();
    cleared();
    input.focus();
  });

  byId("upload").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files[0]) given(file.files[0]);
    file.value = "";
  });
  const pictureIn = (transfer) => [...(transfer?.files ?? [])].find((each) => each.type.startsWith("image/"));
  document.addEventListener("paste", (event) => {
    const found = pictureIn(event.clipboardData);
    if (found) {
      event.preventDefault();
      given(found);
    }
  });
  let depth = 0; // dragenter and dragleave come for every element passed
  const carriesFile = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => {
    if (carriesFile(event)) {
      depth += 1;
      drop.hidden = false;
    }
  });
  document.addEventListener("dragleave", (event) => {
    if (carriesFile(event)) {
      depth -= 1;
      drop.hidden = depth > 0 ? drop.hidden : true;
    }
  });
  document.addEventListener("dragover", (event) => {
    if (carriesFile(event)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    depth = 0;
    drop.hidden = true;
    if (!carriesFile(event)) return;
    event.preventDefault();
    // What is no picture is sent too: the server says which files are.
    const found = pictureIn(event.dataTransfer) ?? event.dataTransfer.files[0];
    if (found) given(found);
  });

  function show(query) {
    // Words still being typed are newer than the query, and a space at their end is no reason to write over them.
    if (timer === null && input.value.trim() !== query.text.trim()) input.value = query.text;
    const by = query.item !== null ? "item" : query.image !== null ? "image" : null;
    asked.hidden = by === null;
    clear.hidden = !query.text && by === null;
    input.placeholder = by === null ? "Describe what you look for" : "Or search by words";
    if (by === "image")
      asked.replaceChildren(picture(thumbnailOf(query.image), { lazy: false }), make("span", {}, "your picture"));
    else if (by === "item")
      asked.replaceChildren(
        ...(query.side === "image" ? [picture(imageOf(query.item), { size: 96, lazy: false })] : []),
        make("span", {}, `like ${query.item}`),
      );
  }

  return {
    show,
    focus: () => {
      input.focus();
      input.select();
    },
  };
}
