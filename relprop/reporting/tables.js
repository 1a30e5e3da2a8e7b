// Numbers as tables: every one that the pictures show, for the token that is kept; and the books, where relevance ended, and in which modules.

function drawTable(stream, columns, caption) {
  byId("table-caption").textContent = caption;
  const name = (i) => `${i}: ${stream.tokens === null ? tokenName(stream, i) : visible(stream.tokens[i], 200)}`;
  const cells = (i) => columns.map(([, values]) => make("td", values === null || values.length !== stream.count ? "–" : exact(values[i])));
  fillTable(byId("table"), ["Token", ...columns.map(([title]) => title)], [...stream.scores.keys()].map((i) => [name(i), ...cells(i)]));
}

// The largest of some values: "name: number", without what a threshold hides.
function drawTop(list, stream, values, least, count) {
  const order = [...values.keys()].filter((j) => values[j] !== 0 && Math.abs(values[j]) >= least).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, count);
  list.replaceChildren(...order.map((j) => make("li", [make("bdi", tokenName(stream, j)), ` ${exact(values[j])}`], { "data-token": j })));
}

const ENDS = { started: "Started at the target", reached: "Reached maps and inputs", absorbed: "Absorbed by parameters", lost: "Lost, by cause", unread: "Flowed on, not lost", residual: "Residual (rounding)" };

function drawLedger(ledger, depth) {
  const total = ([name, title]) => make("div", [make("dt", title), make("dd", brief(ledger.totals[name]), { "data-total": name })]);
  byId("totals").replaceChildren(...Object.entries(ENDS).map(total));
  const groups = new Map();
  for (const [path, ...amounts] of ledger.modules) {
    const name = path === "" ? "(top level)" : path.split(".").slice(0, depth).join(".");
    const sums = groups.get(name) ?? [0, 0, 0, 0, 0];
    groups.set(name, sums.map((s, k) => s + amounts[k]));
  }
  const size = ([, absorbed, lost, unread]) => Math.abs(absorbed) + Math.abs(lost) + Math.abs(unread);
  const largest = Math.max(...[...groups.values()].map(size), 1e-300);
  fillTable(byId("modules"), ["Module, from the target down", "Operations", "Absorbed", "Lost", "Flowed on", "Residual", "Share"], [...groups].map(([name, amounts]) => {
    const bar = make("span", null, { class: "bar" });
    bar.style.width = `${Math.round((70 * size(amounts)) / largest)}%`;
    const share = make("span", ` ${percent(size(amounts) / Math.max(Math.abs(ledger.totals.started), 1e-300))}`);
    return [name, ...amounts.map((x) => make("td", brief(x))), make("td", [bar, share], { class: "bars" })];
  }));
  drawAmounts(byId("lost-by-cause"), "Lost, by cause", ledger.lost);
  drawAmounts(byId("absorbed-by-name"), "Absorbed, by parameter", ledger.absorbed);
}

function drawAmounts(place, title, amounts) {
  const list = make("dl");
  fill(list, amounts.slice(0, 12).map(([name, value]) => [visible(name, 80), brief(value)]));
  place.replaceChildren(make("h3", title), amounts.length === 0 ? make("p", "Nothing.", { class: "note" }) : list);
  if (amounts.length > 12) place.append(make("p", `… and ${amounts.length - 12} smaller ones.`, { class: "note" }));
}
