// Shows the OpenAPI document. Everything is written as text, never as HTML.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== null && text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function classed(names, made) {
  made.className = names;
  return made;
}

function plain(text) {
  return (text || "").replaceAll("`", "");
}

function table(head, rows) {
  const body = rows.map((row) => element("tr", null, ...row.map((cell) => element("td", cell))));
  const top = element("tr", null, ...head.map((cell) => element("th", cell)));
  const made = element("table", null, element("thead", null, top), element("tbody", null, ...body));
  return classed("table", element("div", null, made));
}

class Reference {
  constructor(document_) {
    this.document = document_;
  }

  resolved(schema) {
    if (!schema || !schema.$ref) return schema || {};
    return schema.$ref.slice(2).split("/").reduce((found, part) => found[part], this.document);
  }

  // What a schema allows, in a few words.
  kind(schema) {
    if (!schema) return "";
    if (schema.$ref) return schema.$ref.split("/").pop();
    if (schema.anyOf) return schema.anyOf.map((each) => this.kind(each)).join(" | ");
    if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
    if ("const" in schema) return JSON.stringify(schema.const);
    if (schema.type === "array") return `[${this.kind(schema.items) || "any"}]`;
    const bounds = [
      ["≥", schema.minimum], ["≤", schema.maximum], ["<", schema.exclusiveMaximum], ["length ≤", schema.maxLength],
    ];
    const said = bounds.filter(([, value]) => value !== undefined).map(([sign, value]) => `${sign} ${value}`);
    return [schema.format === "binary" ? "file" : schema.type || "any", ...said].join(", ");
  }

  fields(schema) {
    const found = this.resolved(schema);
    const needed = new Set(found.required || []);
    const rows = Object.entries(found.properties || {}).map(([name, own]) => [
      name + (needed.has(name) ? " *" : ""),
      this.kind(own),
      [own.description, own.default !== undefined ? `Default: ${JSON.stringify(own.default)}.` : ""]
        .filter(Boolean).map(plain).join(" "),
    ]);
    return rows.length ? table(["name", "type", "meaning"], rows) : element("p", this.kind(schema));
  }

  curl(method, path, operation) {
    const parts = [`curl -X ${method.toUpperCase()} '${location.origin}${path}'`];
    if (operation.security) parts.push("-H \"Authorization: Bearer $TOKEN\"");
    const content = operation.requestBody ? operation.requestBody.content : {};
    if (content["application/json"]) {
      const schema = this.resolved(content["application/json"].schema);
      parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify((schema.examples || [{}])[0])}'`);
    } else if (content["multipart/form-data"]) {
      parts.push("-F file=@photo.jpg");
    }
    const shown = element("pre", parts.join(" \\\n  "));
    shown.tabIndex = 0; // it may be wider than the screen, and is scrolled by keys then
    return shown;
  }

  operation(method, path, operation) {
    const said = plain(operation.description || operation.summary);
    const inside = element("div", null);
    inside.append(this.curl(method, path, operation));
    const parameters = operation.parameters || [];
    if (parameters.length) {
      inside.append(element("h3", "Parameters"), table(["name", "in", "type", "meaning"], parameters.map((each) => [
        each.name + (each.required ? " *" : ""), each.in, this.kind(each.schema),
        plain(each.description || (each.schema && each.schema.description)),
      ])));
    }
    for (const [kind, body] of Object.entries(operation.requestBody ? operation.requestBody.content : {})) {
      inside.append(element("h3", `Body: ${kind}`), this.fields(body.schema));
    }
    for (const [status, answer] of Object.entries(operation.responses)) {
      if (!status.startsWith("2")) continue;
      inside.append(element("h3", `Answer ${status}: ${answer.description}`));
      for (const [kind, body] of Object.entries(answer.content || {})) {
        inside.append(kind === "application/json" ? this.fields(body.schema) : element("p", kind));
      }
    }
    const failures = Object.entries(operation.responses).filter(([status]) => !status.startsWith("2"));
    inside.append(element("h3", "Otherwise"), table(["status", "meaning"], failures.map(
      ([status, answer]) => [status, answer.description])));
    const title = element("summary", null, classed(`method ${method}`, element("span", method.toUpperCase())),
      element("code", path), element("span", said));
    return element("details", null, title, inside);
  }

  show(place) {
    const groups = new Map();
    for (const [path, methods] of Object.entries(this.document.paths)) {
      for (const method of METHODS.filter((each) => methods[each])) {
        const tag = (methods[method].tags || ["other"])[0];
        if (!groups.has(tag)) groups.set(tag, []);
        groups.get(tag).push(this.operation(method, path, methods[method]));
      }
    }
    place.replaceChildren(...(this.document.info.description || "").split("\n\n").map((text) => element("p", plain(text))));
    for (const [tag, operations] of groups) place.append(element("h2", tag), ...operations);
    place.removeAttribute("aria-busy");
  }
}

fetch("/openapi.json")
  .then((answer) => answer.json())
  .then((found) => new Reference(found).show(document.getElementById("reference")))
  .catch(() => document.getElementById("reference").replaceChildren(
    element("p", "The OpenAPI document could not be loaded. Is the server running?")));
