const heads = [...document.querySelectorAll("[data-head]")];
const table = [...document.querySelectorAll(".heads tr")].map((row) => [...row.querySelectorAll("button")]).filter((row) => row.length);
const large = document.getElementById("large"), which = document.getElementById("which");
const picture = document.querySelector(".seen");
const dark = matchMedia("(prefers-color-scheme: dark)");
const percent = (share) => share >= 0.001 ? `${Number((100 * share).toPrecision(2))}\u00a0%` : "<\u00a00.1\u00a0%";
let chosen = data.first;

function paint(canvas, head, width, height, ground) {
  canvas.width = width; canvas.height = height;
  const pen = canvas.getContext("2d"), w = width / data.columns, h = height / data.rows;
  pen.imageSmoothingEnabled = false;
  pen.filter = "grayscale(1)";
  if (ground) pen.drawImage(ground, 0, 0, width, height);
  pen.filter = "none";
  pen.fillStyle = ground ? "#f0873a" : getComputedStyle(canvas).getPropertyValue("--for").trim();
  head.cells.forEach((value, i) => {
    pen.globalAlpha = (ground ? 0.9 : 1) * (value / 255) ** 0.8;
    pen.fillRect(Math.floor(i % data.columns * w), Math.floor(Math.floor(i / data.columns) * h), Math.ceil(w), Math.ceil(h));
  });
}

function words(head) {
  return head.cells.slice(0, data.names.length).flatMap((value, i) => {
    const word = document.createElement("span"), share = value / 255 * head.most;
    word.className = "shade";
    word.style.setProperty("--s", `${value / 2.55}%`);
    word.textContent = data.names[i];
    if (share >= 0.005) word.append(Object.assign(document.createElement("sub"), { textContent: percent(share) }));
    return [word, " "];
  });
}

function enlarge(number) {
  const head = data.heads[chosen = number], at = head.cells.indexOf(255), columns = data.columns;
  for (const button of heads) button.setAttribute("aria-pressed", String(Number(button.dataset.head) === number));
  if (data.names) large.replaceChildren(...words(head));
  else {
    const canvas = document.createElement("canvas"), wide = picture?.naturalWidth ?? columns, high = picture?.naturalHeight ?? data.rows, scale = Math.ceil(448 / wide);
    large.replaceChildren(canvas);
    paint(canvas, head, scale * wide, scale * high, picture);
  }
  const place = data.names ? `“${data.names[at]}”` : `the patch in row ${Math.floor(at / columns)}, column ${at % columns}`;
  const strongest = at < 0 ? "" : ` Strongest: ${place} (${percent(head.most)}).`;
  which.textContent = `${head.label[0].toUpperCase()}${head.label.slice(1)}${head.path ? `, module ${head.path}` : ""}.${strongest}${head.rest}`;
}

function all() {
  for (const button of heads) {
    const canvas = button.querySelector("canvas"), cell = Math.max(2, Math.floor(96 / data.columns));
    if (canvas) paint(canvas, data.heads[button.dataset.head], cell * data.columns, data.names ? 20 * data.rows : cell * data.rows);
  }
  enlarge(chosen);
}

const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
table.forEach((row, y) => row.forEach((button, x) => {
  button.tabIndex = Number(button.dataset.head) === data.first ? 0 : -1;
  button.addEventListener("keydown", (event) => {
    const step = steps[event.key], next = step && table[y + step[0]]?.[x + step[1]];
    if (step) event.preventDefault();
    if (!next) return;
    button.tabIndex = -1; next.tabIndex = 0; next.focus();
  });
}));
for (const button of heads) button.addEventListener("click", () => {
  enlarge(Number(button.dataset.head));
  large.parentElement.scrollIntoView({ block: "nearest" });
});
dark.addEventListener("change", all);
picture ? picture.decode().finally(all) : all();
