// Failures in words: what happened, and what to do about it.
import { icon, make } from "./dom.js";
import { askForToken } from "./token.js";

const WORDS = {
  unreachable: ["The server does not answer", "It may have been stopped, or the network is down."],
  unauthorised: [
    "This server asks for a token",
    "Whoever started it has one: it is in the file given with --token-file.",
  ],
  forbidden: ["The server refuses this", "It may have been started with --read-only."],
  not_found: ["Not there", "It may have been removed from the index."],
  too_large: ["Too large", "Choose a smaller picture, or a shorter text."],
  rate_limited: ["Too many requests at once", "The server asks to slow down for a moment."],
  overloaded: ["The server is busy", "It has as much to do as it can take."],
  starting: ["The server is starting", "It is loading the model and the index."],
  timeout: ["That took too long", "The server gave up on it. A filter, or the fast mode, asks for less work."],
  conflict: ["Something else is changing this", "Try again in a moment."],
  unsupported: ["This is no picture that can be read", "JPEG, PNG, WebP and GIF are."],
  bad_request: ["That cannot be searched", "The server did not understand the request."],
  internal: ["Something went wrong in the server", "Its log says what."],
};
const BY_STATUS = {
  0: "unreachable",
  401: "unauthorised",
  403: "forbidden",
  404: "not_found",
  413: "too_large",
  429: "rate_limited",
  503: "overloaded",
  504: "timeout",
  400: "bad_request",
  415: "unsupported",
  422: "bad_request",
};
const PASSING = new Set(["unreachable", "rate_limited", "overloaded", "starting", "timeout"]);

/** What to tell of an error: { title, text, passing }; passing: it may work if tried again. */
export function inWords(error) {
  const code = WORDS[error.code] ? error.code : (BY_STATUS[error.status] ?? "internal");
  const [title, text] = WORDS[code];
  return {
    code,
    title,
    text: (error.status && error.message.replace(/ ?Try again in a moment\.$/, "")) || text,
    passing: PASSING.has(code),
  };
}

/** A box that says what happened; again() is offered where it may help, and done by itself after a 503. */
export function notice(error, again) {
  const { code, title, text, passing } = inWords(error);
  const box = make(
    "div",
    { class: "notice" },
    icon(code === "unauthorised" ? "key" : "alert"),
    make("div", {}, make("h2", {}, title), make("p", {}, text)),
  );
  if (code === "unauthorised")
    box.append(
      make("button", { type: "button", class: "button main", onclick: () => askForToken(again) }, "Enter the token"),
    );
  else if (passing && again) {
    const button = make("button", { type: "button", class: "button", onclick: again }, "Try again");
    box.append(button);
    if (code === "overloaded" || code === "starting") {
      const seconds = Math.min(30, error.wait ?? 3);
      box.querySelector("p").append(` Trying again in ${seconds} s.`);
      setTimeout(() => {
        if (box.isConnected) again();
      }, 1000 * seconds);
    }
  }
  return box;
}
