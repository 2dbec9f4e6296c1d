// A search as an address, and back: every search has a link.
const FLAGS = ["relevant", "dedupe"];

/** Nothing searched yet. why: the result whose explanation is open. */
export const NOTHING = Object.freeze({
  text: "",
  item: null,
  side: "image",
  image: null,
  find: "image",
  filter: "",
  mode: "exact",
  relevant: true,
  dedupe: true,
  why: null,
});

export function fromAddress(address = location.search) {
  const given = new URLSearchParams(address);
  const query = {
    ...NOTHING,
    text: given.get("q") ?? "",
    item: given.get("item"),
    image: given.get("image"),
    filter: given.get("filter") ?? "",
    why: given.get("why"),
  };
  if (given.get("find") === "text") query.find = "text";
  if (given.get("side") === "text") query.side = "text";
  if (given.get("mode") === "fast") query.mode = "fast";
  for (const flag of FLAGS) if (given.get(flag) === "0") query[flag] = false;
  return query;
}

/** Only what differs from the usual is written down, so that links stay short. */
export function toAddress(query) {
  const written = new URLSearchParams();
  if (query.item !== null) {
    written.set("item", query.item);
    if (query.side === "text") written.set("side", "text");
  } else if (query.image !== null) written.set("image", query.image);
  else if (query.text) written.set("q", query.text);
  for (const name of ["find", "mode", "filter"]) if (query[name] !== NOTHING[name]) written.set(name, query[name]);
  for (const flag of FLAGS) if (!query[flag]) written.set(flag, "0");
  if (query.why !== null) written.set("why", query.why);
  const text = written.toString();
  return text ? `/?${text}` : "/";
}

export const isEmpty = (query) => query.item === null && query.image === null && !query.text.trim();

/** The body of POST /search. */
export function toBody(query, offset, k) {
  const asked =
    query.item !== null
      ? { item: query.item, side: query.side }
      : query.image !== null
        ? { image: query.image }
        : { text: query.text.trim() };
  const body = {
    ...asked,
    find: query.find,
    k,
    offset,
    mode: query.mode,
    relevant: query.relevant,
    dedupe: query.dedupe,
  };
  if (query.filter) body.filter = query.filter;
  return body;
}

/** Whether two ask for the same results. */
export const sameSearch = (one, other) => toAddress({ ...one, why: null }) === toAddress({ ...other, why: null });
