// Filters chosen with controls, as the text the server reads, and back.
//
// choices: { labels: ["dog"], every: true, numbers: { year: [2020, null] }, texts: { camera: ["X100"] } }
const TAKEN = new Set(["id", "label", "caption", "path", "side"]);
const PLAIN = /^[A-Za-z_][A-Za-z0-9_]*$/;
const WORDS = new Set(["and", "or", "not", "in", "like", "contains", "is", "null", "true", "false"]);

export const nothing = () => ({ labels: [], every: true, numbers: {}, texts: {} });

const quote = (text) => `'${text.replaceAll("'", "''")}'`;

function field(name) {
  // A dot is part of the name here: unquoted it would go inside a value.
  const written = PLAIN.test(name) && !WORDS.has(name.toLowerCase()) ? name : `"${name.replaceAll('"', '""')}"`;
  return TAKEN.has(name) ? `metadata.${written}` : written;
}

export function compose({ labels, every, numbers, texts }) {
  const clauses = [];
  if (every) clauses.push(...labels.map((label) => `label = ${quote(label)}`));
  else if (labels.length) clauses.push(`label in (${labels.map(quote).join(", ")})`);
  for (const [name, [low, high]] of Object.entries(numbers)) {
    if (low !== null) clauses.push(`${field(name)} >= ${low}`);
    if (high !== null) clauses.push(`${field(name)} <= ${high}`);
  }
  for (const [name, values] of Object.entries(texts)) {
    if (values.length) clauses.push(`${field(name)} in (${values.map(quote).join(", ")})`);
  }
  return clauses.join(" and ");
}

const NAME = '(?:metadata\\.)?(?:"(?:[^"]|"")*"|\\S+)';
const TEXT = "'(?:[^']|'')*'";
const unquote = (text) => text.slice(1, -1).replaceAll("''", "'");
const list = (text) => [...text.matchAll(new RegExp(TEXT, "g"))].map(([each]) => unquote(each));

/** The choices that compose() would write as this text; null if controls cannot say it. */
export function parse(text, { metadata = [] } = {}) {
  const choices = nothing();
  const named = new Map(metadata.map((each) => [field(each.name), each]));
  const clause = new RegExp(
    `^(?:label = (${TEXT})|(${NAME}) (>=|<=) (-?[0-9.eE+]+)|(${NAME}) in \\((${TEXT}(?:, ${TEXT})*)\\))(?: and |$)`,
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
      if (number === undefined) choices.texts[about.name] = list(values);
      else (choices.numbers[about.name] ??= [null, null])[sign === ">=" ? 0 : 1] = Number(value);
    }
    rest = rest.slice(whole.length);
  }
  return compose(choices) === text.trim() ? choices : null;
}
