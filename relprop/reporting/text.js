// Text that came with the data is only ever text: no character of it can close, reorder or hide what stands around it.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

function visible(text, most = 60) {
  const shown = [...text.slice(0, 2 * most)].slice(0, most).join("").replace(HIDDEN, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  const whole = text.length <= 2 * most && [...text].length <= most;
  return whole ? (shown === "" ? "⟨empty⟩" : shown) : `${shown}… (${text.length} characters)`;
}

// The shortest decimal that is this float32 and no other.
function exact(x) {
  for (let digits = 6; digits < 9; digits += 1) {
    const text = Number(x).toPrecision(digits);
    if (Math.fround(Number(text)) === Math.fround(x)) return String(Number(text));
  }
  return String(Number(Number(x).toPrecision(9)));
}

function brief(x) {
  if (x === 0) return "0";
  return Math.abs(x) >= 0.001 && Math.abs(x) < 100000 ? String(Number(x.toPrecision(4))) : x.toExponential(2);
}

function percent(x) {
  if (x > 0 && x < 0.0001) return "< 0.01 %";
  return `${Number((100 * x).toPrecision(3))} %`;
}

// An element around a text, another element, or a list of them; null: around nothing.
function make(tag, inside, attributes = {}) {
  const element = document.createElement(tag);
  element.append(...[inside ?? []].flat());
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function fill(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, text]) => [make("dt", name), make("dd", make("bdi", text))]));
}

// Rows of a name and cells.
function fillTable(table, names, rows) {
  table.tHead.replaceChildren(make("tr", names.map((name) => make("th", name, { scope: "col" }))));
  table.tBodies[0].replaceChildren(...rows.map(([name, ...cells]) => make("tr", [make("th", make("bdi", name), { scope: "row" }), ...cells])));
}
