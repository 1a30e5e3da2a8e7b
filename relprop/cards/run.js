const body = document.getElementById("samples").tBodies[0];
const rows = [...body.rows], templates = [...document.querySelectorAll("template")];
const contents = new Map(rows.map((row, k) => [row, templates[k].content]));
const heads = [...document.querySelectorAll("#samples thead th")];
const dialog = document.getElementById("detail");
let open = null;

heads.forEach((head, at) => head.firstChild.addEventListener("click", () => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[at].dataset.v;
  const numbers = rows.every((row) => key(row) === "" || !isNaN(key(row)));
  const order = (a, b) => (numbers ? key(a) - key(b) : key(a).localeCompare(key(b)));
  rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (up ? order(a, b) : order(b, a)));
  body.append(...rows);
}));

document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  const left = rows.filter((row) => !row.hidden).length;
  document.getElementById("left").textContent = wanted ? `${left} of ${rows.length} samples` : "";
});

function show(row) {
  open = row;
  dialog.lastElementChild.replaceChildren(contents.get(row).cloneNode(true));
  dialog.querySelectorAll("canvas").forEach(async (canvas) => paint(canvas, await read(canvas)));
  if (!dialog.open) dialog.showModal();
}

body.addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row && getSelection().isCollapsed) show(row);
});
dialog.addEventListener("close", () => open.querySelector("button").focus());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) return dialog.close();
  const step = event.target.dataset.step;
  if (step === undefined) return;
  const there = rows.filter((row) => !row.hidden), next = there[there.indexOf(open) + Number(step)];
  if (step === "0") dialog.close();
  else if (next) show(next);
});
