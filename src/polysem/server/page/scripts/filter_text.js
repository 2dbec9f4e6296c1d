// Filters chosen with controls, as the text the server reads, and back.
//
// choices: { labels: ["dog"], every: true, numbers: { year: [2020, null] }, values: { camera: ["X100"], flash: [true] } }
const TAKEN = new Set(["id", "label", "caption", "path", "side"]);
const PLAIN = /^[A-Za-z_][A-Za-z0-9_]*$/;
const WORDS = new Set(["and", "or", "not", "in", "like", "contains", "is", "null", "true", "false"]);

export const nothing = () => ({ labels: [], every: true, numbers: {}, values: {} });

const quote = (text) => `'${text.replaceAll("'", "''")}'`;
const literal = (value) => (typeof value === "string" ? quote(value) : String(value));

function field(name) {
  // A dot is part of the name here: unquoted it would go inside a value.
  const written = PLAIN.test(name) && !WORDS.has(name.toLowerCase()) ? name : `"${name.replaceAll('"', '""')}"`;
  return TAKEN.has(name) ? `metadata.${written}` : written;
}

export function compose({ labels, every, numbers, values }) {
  const clauses = [];
  if (every) clauses.push(...labels.map((label) => `label = ${literal(label)}`));
  else if (labels.length) clauses.push(`label in (${labels.map(literal).join(", ")})`);
  for (const [name, [low, high]] of Object.entries(numbers)) {
    if (low !== null) clauses.push(`${field(name)} >= ${low}`);
    if (high !== null) clauses.push(`${field(name)} <= ${high}`);
  }
  for (const [name, chosen] of Object.entries(values)) {
    if (chosen.length) clauses.push(`${field(name)} in (${chosen.map(literal).join(", ")})`);
  }
  return clauses.join(" and ");
}

const NAME = '(?:metadata\\.)?(?:"(?:[^"]|"")*"|\\S+)';
const TEXT = "'(?:[^']|'')*'";
const VALUE = `(?:${TEXT}|true|false|-?[0-9][0-9.eE+-]*)`;
const unquote = (text) => text.slice(1, -1).replaceAll("''", "'");
const valueOf = (text) => (text[0] === "'" ? unquote(text) : ({ true: true, false: false }[text] ?? Number(text)));
const list = (text) => [...text.matchAll(new RegExp(VALUE, "g"))].map(([each]) => valueOf(each));

/** How many conditions a filter has, as far as one can tell. */
export const conditions = (text) =>
  text ? text.replace(new RegExp(`${TEXT}|"[^"]*"`, "g"), "").split(/\band\b/i).length : 0;

/** The choices that compose() would write as this text; null if controls cannot say it. */
export function parse(text, { metadata = [] } = {}) {
  const choices = nothing();
  const named = new Map(metadata.map((each) => [field(each.name), each]));
  const clause = new RegExp(
    `^(?:label = (${TEXT})|(${NAME}) (>=|<=) (-?[0-9.eE+]+)|(${NAME}) in \\((${VALUE}(?:, ${VALUE})*)\\))(?: and |$)`,
  );
  for (let rest = text.trim(); rest;) {
    const found = clause.exec(rest);
    if (!found) return null;
    const [whole, label, number, sign, value, several, values] = found;
    if (label !== undefined) choices.labels.push(unquote(label));
    else if (several === "label") Object.assign(choices, { labels: list(values), every: false });
    else {
      const about = named.get(number ?? several);
      if (!about || (about.kind === "number") !== (number !== undefined)) return null;
      if (number === undefined) choices.values[about.name] = list(values);
      else (choices.numbers[about.name] ??= [null, null])[sign === ">=" ? 0 : 1] = Number(value);
    }
    rest = rest.slice(whole.length);
  }
  return compose(choices) === text.trim() ? choices : null;
}
