// The books: what started, where it ended, and in which modules.

const ENDS = { started: "Started at the target", reached: "Reached maps and inputs", absorbed: "Absorbed by parameters", lost: "Lost, by cause", unread: "Flowed on, not lost", residual: "Residual (rounding)" };

function cut(path, depth) {
  if (path === "") return "(top level)";
  return path.split(".").slice(0, depth).join(".");
}

function drawLedger(ledger, depth) {
  byId("totals").replaceChildren(...Object.entries(ENDS).map(([name, title]) => {
    const box = make("div");
    box.append(make("dt", title), make("dd", brief(ledger.totals[name]), { "data-total": name }));
    return box;
  }));
  const groups = new Map();
  for (const [path, ...amounts] of ledger.modules) {
    const name = cut(path, depth);
    const sums = groups.get(name) ?? [0, 0, 0, 0, 0];
    groups.set(name, sums.map((s, k) => s + amounts[k]));
  }
  const size = ([, absorbed, lost, unread]) => Math.abs(absorbed) + Math.abs(lost) + Math.abs(unread);
  const largest = Math.max(...[...groups.values()].map(size), 1e-300);
  const table = byId("modules");
  const head = make("tr");
  for (const name of ["Module, from the target down", "Operations", "Absorbed", "Lost", "Flowed on", "Residual", "Share"]) head.append(make("th", name, { scope: "col" }));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...[...groups].map(([name, amounts]) => {
    const row = make("tr");
    const first = make("th", null, { scope: "row" });
    first.append(make("bdi", name));
    const bars = make("td", null, { class: "bars" });
    const bar = make("span", null, { class: "bar" });
    bar.style.width = `${Math.round((70 * size(amounts)) / largest)}%`;
    bars.append(bar, make("span", ` ${percent(size(amounts) / Math.max(Math.abs(ledger.totals.started), 1e-300))}`));
    row.append(first, ...amounts.map((x) => make("td", brief(x))), bars);
    return row;
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

function depths(ledger) {
  return Math.max(1, ...ledger.modules.map(([path]) => path.split(".").length));
}
