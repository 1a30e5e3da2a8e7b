// The table alternative: every number the pictures show, for the token that is kept.

function drawTable(stream, columns, caption) {
  const table = byId("table");
  byId("table-caption").textContent = caption;
  const head = make("tr");
  for (const name of ["Token", ...columns.map(([name]) => name)]) head.append(make("th", name, { scope: "col" }));
  table.tHead.replaceChildren(head);
  const rows = [];
  for (let i = 0; i < stream.count; i += 1) {
    const row = make("tr");
    const first = make("th", null, { scope: "row" });
    first.append(make("bdi", `${i}: ${stream.tokens === null ? tokenName(stream, i) : visible(stream.tokens[i], 200)}`));
    row.append(first, ...columns.map(([, values]) => make("td", values === null || values.length !== stream.count ? "–" : exact(values[i]))));
    rows.push(row);
  }
  table.tBodies[0].replaceChildren(...rows);
}

// The largest of some values: "name: number", without what a threshold hides.
function drawTop(list, stream, values, least, count) {
  const order = [...values.keys()].filter((j) => values[j] !== 0 && Math.abs(values[j]) >= least).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, count);
  list.replaceChildren(...order.map((j) => {
    const item = make("li", null, { "data-token": j });
    item.append(make("bdi", tokenName(stream, j)), ` ${exact(values[j])}`);
    return item;
  }));
}
