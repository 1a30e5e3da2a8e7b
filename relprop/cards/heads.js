const heads = [...document.querySelectorAll("[data-head]")], large = document.getElementById("large");
const table = [...document.querySelectorAll(".heads tr")].map((row) => [...row.querySelectorAll("button")]).filter((row) => row.length);

function draw(canvas, head) {
  [canvas.width, canvas.height] = [data.columns, data.rows];
  paint(canvas, head.cells.map((value) => value / 255));
}

function words(head) {
  return head.cells.slice(0, data.names.length).flatMap((value, i) => {
    const word = document.createElement("span"), share = value / 255 * head.most;
    word.className = "shade";
    word.style.setProperty("--s", `${value / 2.55}%`);
    word.textContent = data.names[i];
    if (share >= 0.005) word.append(Object.assign(document.createElement("sub"), { textContent: `${Number((100 * share).toPrecision(2))}%` }));
    return [word, " "];
  });
}

function enlarge(number) {
  const head = data.heads[number];
  for (const button of heads) button.setAttribute("aria-pressed", String(Number(button.dataset.head) === number));
  if (data.names) large.replaceChildren(...words(head));
  else draw(large, head);
  document.getElementById("which").textContent = head.says;
}

const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
table.forEach((row, y) => row.forEach((button, x) => {
  const canvas = button.querySelector("canvas");
  draw(canvas, data.heads[button.dataset.head]);
  canvas.style.opacity = 0.15 + 0.85 * Math.sqrt(parseFloat(button.querySelector("i").style.width) / 100);
  if (data.names) canvas.style.aspectRatio = `96/${20 * data.rows}`;
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
  large.scrollIntoView({ block: "nearest" });
});
enlarge(data.first);
