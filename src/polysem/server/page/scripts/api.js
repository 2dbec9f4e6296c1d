// The HTTP API. Every failure arrives as an ApiError with a code, whatever went wrong.
const BASE = "/api/v1";
const KEPT = "polysem-token";

export class ApiError extends Error {
  constructor(status, code, message, wait = null) {
    super(message);
    Object.assign(this, { status, code, wait });
  }
}

let token = null;
try {
  token = sessionStorage.getItem(KEPT);
} catch {
  /* storage is forbidden: it holds until the page is left */
}

export const hasToken = () => token !== null;

export function setToken(given) {
  token = given || null;
  try {
    if (token === null) sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, token);
  } catch {
    /* as above */
  }
}

/** A response that is not an error. */
export async function request(address, { method = "GET", body, form, signal } = {}) {
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address, {
      method,
      headers,
      signal,
      body: form ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "");
  }
  if (response.ok) return response;
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    /* a proxy's page, or nothing */
  }
  throw new ApiError(
    response.status,
    said.code ?? "internal",
    said.message ?? "",
    Number(response.headers.get("Retry-After")) || null,
  );
}

async function json(path, options) {
  return (await request(BASE + path, options)).json();
}

// An id may hold slashes and any other sign; all of it is encoded.
const itemPath = (id) => `/items/${encodeURIComponent(id)}`;

export const stats = () => json("/stats");
export const model = (signal) => json("/model", { signal });
export const search = (body, signal) => json("/search", { method: "POST", body, signal });
export const explain = (body, signal) => json("/explain", { method: "POST", body, signal });
export const item = (id, side, signal) => json(`${itemPath(id)}?side=${side}`, { signal });
export const map = (colour, method, signal) =>
  json(`/map?${new URLSearchParams({ colour, method, limit: 5000 })}`, { signal });
export const removeItem = (id, side) => request(`${BASE}${itemPath(id)}?side=${side}`, { method: "DELETE" });

export function upload(file, signal) {
  const form = new FormData();
  form.append("file", file, file.name || "picture");
  return json("/uploads", { method: "POST", form, signal });
}

/** Exchanges the token for a cookie, which pictures carry by themselves: <img> sends no token. */
export const session = () => request(`${BASE}/session`, { method: "POST" });

export const imageOf = (id) => `${BASE}${itemPath(id)}/image`;
export const thumbnailOf = (uploaded) => `${BASE}/uploads/${encodeURIComponent(uploaded)}/thumbnail`;
