// What is shown, and what changes it.

const data = JSON.parse(byId("data").textContent);
const state = { sample: 0, explanation: 0, stream: 0, block: 0, head: -1, threshold: 0, over: true, words: true, kept: 0, here: 0, key: null, query: 0 };
let shown = null;
let turn = 0;

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text, off]) => make("option", visible(text, 90), { value, ...(off ? { disabled: "" } : {}) })));
  select.value = String(chosen);
}

function one() {
  return data.explanations[state.explanation];
}

function sampleOf(explanation) {
  return explanation.samples[state.sample];
}

function drawControls() {
  const target = sampleOf(one()).target;
  const targets = [...new Set(data.explanations.map((e) => sampleOf(e).target))];
  const methods = [...new Set(data.explanations.map((e) => e.label))];
  const there = (label) => data.explanations.some((e) => e.label === label && sampleOf(e).target === target);
  options(byId("sample"), [...Array(data.batch).keys()].map((n) => [n, `${n + 1} of ${data.batch}${data.names ? `: ${data.names[n]}` : ""}`]), state.sample);
  options(byId("target"), targets.map((t) => [t, t]), target);
  options(byId("method"), methods.map((m) => [m, m, !there(m)]), one().label);
  options(byId("stream"), sampleOf(one()).streams.map((s, k) => [k, s.name]), state.stream);
  byId("sample").parentElement.hidden = data.batch === 1;
  byId("stream").parentElement.hidden = sampleOf(one()).streams.length === 1;
}

// The explanation of a target by a method, else the first that fits `otherwise`, else the first.
function choose(target, label, otherwise) {
  const both = (e) => sampleOf(e).target === target && e.label === label;
  state.explanation = [both, otherwise].map((fits) => data.explanations.findIndex(fits)).find((k) => k >= 0) ?? 0;
}

// Everything for another explanation, sample or input.
async function refresh() {
  turn += 1;
  const mine = turn;
  const { label, facts, code } = one();
  const sample = sampleOf(one());
  state.stream = Math.min(state.stream, sample.streams.length - 1);
  drawControls();
  const stream = await readStream(sample.streams[state.stream]);
  if (mine !== turn) return;
  const before = shown;
  shown = { sample, stream, heads: null, sampleNumber: state.sample };
  if (before === null || before.stream.count !== stream.count || before.stream.name !== stream.name || before.sampleNumber !== state.sample) {
    state.kept = stream.scores.reduce((best, v, i) => (v > stream.scores[best] ? i : best), 0);
  }
  byId("summary").textContent = `${data.names ? `${visible(data.names[state.sample], 90)}: ` : ""}Target ${visible(sample.target)}, output ${brief(sample.output)}; ${visible(label)}; ${stream.count} ${stream.grid === null ? "tokens" : "tokens on a grid of " + stream.grid.join("×")}.`;
  drawWords(sample.said);
  byId("picture-label").hidden = stream.picture === null;
  byId("score-note").textContent = stream.note ?? "";
  byId("words-label").hidden = ![...partsOf(stream).values()].length;
  shown.scores = new Field(byId("score-field"), stream, true, state.words);
  shown.row = stream.matrix === null ? null : new Field(byId("row-field"), stream, false);
  if (shown.row === null) byId("row-field").replaceChildren();
  byId("row-note").textContent = stream.matrix === null ? "C is not in this report. It is with keep=\"matrix\", for methods that multiply matrices and one explained input: relprop.explain(model, inputs, keep=\"matrix\")." : "";
  fill(byId("facts"), [...facts, ...modelFacts(), ["versions", data.versions.map((v) => v.join(" ")).join(", ")]]);
  byId("code").textContent = code;
  drawBooks();
  keep(state.kept, false);
  drawScores();
  await drawBeside(mine);
  await drawHeads();
}

// The same question answered by every method of the report, each on its own scale.
async function drawBeside(mine) {
  const { target } = sampleOf(one());
  const { name } = shown.stream;
  const others = data.explanations.filter((e) => sampleOf(e).target === target && sampleOf(e).streams.some((s) => s.name === name));
  byId("beside").hidden = others.length < 2;
  if (others.length < 2) return;
  const read = await Promise.all(others.map((e) => readStream(sampleOf(e).streams.find((s) => s.name === name))));
  if (mine !== turn) return;
  shown.beside = read.map((stream, k) => {
    const pick = make("button", visible(others[k].label, 60), { type: "button", class: "link", "aria-pressed": String(others[k] === one()) });
    pick.addEventListener("click", () => { state.explanation = data.explanations.indexOf(others[k]); refresh(); });
    const place = make("div", null, { class: "field" });
    return { stream, figure: make("figure", [make("figcaption", pick), place]), field: new Field(place, stream, false, state.words) };
  });
  byId("beside-fields").replaceChildren(...shown.beside.map((panel) => panel.figure));
  drawScores();
}

// The first box: what a reader who knows nothing else should know.
function drawWords({ asked, instead, answers, concerns, method, distrust }) {
  const lines = (id, kind, texts) => byId(id).replaceChildren(...texts.map((text) => make(kind, text)));
  byId("said-asked").textContent = asked;
  byId("said-instead").textContent = instead;
  byId("said-method").textContent = method;
  lines("said-answers", "p", answers);
  lines("said-concerns", "li", concerns);
  byId("said-concerns").hidden = concerns.length === 0;
  lines("said-distrust", "li", distrust);
}

function modelFacts() {
  if (data.model === null) return [["model", "not given: explanation.to_html(path, model=model) writes its class and its weights' hash here"]];
  return data.model.map(([name, value]) => [{ class: "model", weights: "weights, SHA-256", settings: "settings, SHA-256" }[name] ?? name, value]);
}

function drawScores() {
  const { stream, scores } = shown;
  for (const panel of [{ field: scores, stream }, ...(shown.beside ?? [])]) {
    const most = panel.field.largest(panel.stream.scores);
    panel.field.draw(panel.stream.scores, most, state.threshold * most, state.over);
  }
  const largest = scores.largest(stream.scores);
  drawLegend(byId("legend"), stream.scores.some((v) => v < 0));
  byId("score-scale").textContent = `largest ${brief(largest)}`;
  const above = [...stream.scores.keys()].filter((i) => Math.abs(stream.scores[i]) >= state.threshold * largest);
  const sum = (list) => list.reduce((total, i) => total + Math.abs(stream.scores[i]), 0);
  const part = sum(above) / Math.max(sum([...stream.scores.keys()]), 1e-300);
  const said = `${Math.round(100 * state.threshold)} %: ${above.length} of ${stream.count} tokens, ${percent(part)} of Σ|score|`;
  byId("threshold-said").textContent = state.threshold === 0 ? "0 %: all tokens" : said;
  byId("threshold").setAttribute("aria-valuetext", said);
}

// The row of token i, everywhere: this is what a hover runs.
function show(i) {
  const { stream, scores, row, heads } = shown;
  state.here = i;
  const name = tokenName(stream, i);
  scores.mark(i);
  const part = scores.parts.get(scores.leader(i));
  byId("picked-name").textContent = part ? `${name} (of ${visible(part.name)}: ${brief(scores.sumAt(scores.leader(i), stream.scores))})` : name;
  const values = stream.matrix === null ? null : stream.matrix(i);
  const listed = row === null ? stream.scores : values ?? [];
  const largest = listed.reduce((most, v, j) => (row !== null && j === i ? most : Math.max(most, Math.abs(v))), 0);
  byId("top-title").textContent = row === null ? "Largest scores" : "Largest entries of its row of C";
  drawTop(byId("top"), stream, listed, state.threshold * largest, 8);
  if (row !== null) {
    row.mark(i);
    row.draw(values, largest, state.threshold * largest, state.over);
    byId("row-caption").textContent = `Row of C of ${name}`;
    byId("row-note").textContent = values === null ? "This row of C is not in the file: the rows with the highest scores are." : `Colours end at ${brief(largest)}, the largest entry beside the token's own.`;
  }
  fill(byId("picked-facts"), [["score", exact(stream.scores[i])], ["row − skips alone", `${exact(stream.row[i])} − ${exact(stream.identity[i])}`]]);
  if (heads !== null) {
    if (heads.ofTokens.queries) state.query = i;
    byId("query").value = String(state.query);
    heads.show(state.query, state.key, state.threshold, state.over);
  }
}

// Shows a token until another is kept.
function keep(i, told = true) {
  i = shown.scores.leader(i);
  for (const k of [state.kept, i]) {
    shown.scores.buttons.get(k)?.setAttribute("aria-pressed", String(k === i));
    shown.scores.buttons.get(k)?.setAttribute("tabindex", k === i ? "0" : "-1");
  }
  state.kept = i;
  show(i);
  drawOpenTable();
  if (told) {
    const first = [...byId("top").children].slice(0, 3).map((item) => item.textContent);
    byId("spoken").textContent = `${tokenName(shown.stream, i)} kept. ${byId("top-title").textContent}: ${first.join("; ")}`;
  }
}

function drawOpenTable() {
  if (!byId("table-details").open) return;
  const { stream, heads } = shown;
  const columns = [["Score", stream.scores], ["Row of C", stream.matrix === null ? null : stream.matrix(state.kept)]];
  const where = heads === null ? "" : `; A, ∇A and R: query ${state.query} of ${sampleOf(one()).blocks[state.block].path}, ${headName(state.head, heads.panels[0].map.lead)}, rounded`;
  for (const { title, map } of heads?.panels ?? []) columns.push([title.split(" ").pop(), map.row(state.head, state.query)]);
  drawTable(stream, columns, `Kept token: ${tokenName(stream, state.kept)}${where}`);
}

async function drawHeads() {
  const { blocks } = shown.sample;
  const mine = turn;
  byId("heads-body").hidden = blocks === null;
  byId("heads-note").textContent = blocks === null
    ? "The maps of single heads are not in this report. They are with keep=\"blocks\": relprop.explain(model, inputs, keep=(\"blocks\", \"matrix\"))."
    : resolutions(blocks);
  drawLimits(blocks);
  if (blocks === null) return;
  state.block = Math.min(state.block, blocks.length - 1);
  const block = blocks[state.block];
  const { path } = block;
  const read = Object.fromEntries(await Promise.all(KINDS.filter(([kind]) => kind in block).map(async ([kind]) => [kind, await readMap(block[kind])])));
  if (mine !== turn || path !== shown.sample.blocks[state.block].path) return;
  shown.heads = new HeadMaps(byId("maps"), shown.stream, block, read, point);
  state.head = Math.min(state.head, shown.heads.heads - 1);
  state.query = Math.min(state.query, shown.heads.queries - 1);
  options(byId("block"), blocks.map((b, k) => [k, `${k}: ${b.path}`]), state.block);
  options(byId("head"), [-1, ...Array(shown.heads.heads).keys()].map((h) => [h, headName(h, block.attention.lead)]), state.head);
  byId("query").max = String(shown.heads.queries - 1);
  drawHead();
}

function drawHead() {
  shown.heads.chooseHead(state.head, shown.sample.blocks[state.block].path);
  show(state.here);
  drawOpenTable();
}

function resolutions(blocks) {
  const kinds = KINDS.filter(([kind]) => kind in blocks[0]);
  const levels = kinds.map(([kind, title]) => `${title} to 1/${blocks[0][kind].level}`).join(", ");
  const { rows, mean_rows: meanRows, queries } = blocks[0].attention;
  const fewer = rows === null ? "" : ` To stay within ${data.megabytes} MB, single heads keep ${rows.length} of ${queries} rows, those of the tokens with the highest scores.`;
  const fewerMeans = meanRows === null ? "" : ` Means over heads keep ${meanRows.length} of ${queries} rows so; the others are means of the rounded heads, where these are in the file.`;
  return `Rounded: single heads have ${levels} of each map's largest magnitude; means over heads to 1/255 of each row's.${fewer}${fewerMeans} Each map's colours end at its own largest value, each row's at the row's.`;
}

function drawLimits(blocks) {
  const { dtype } = shown.stream;
  const ofMaps = "Where a map has as many queries or keys as one explained input has tokens, they are taken to be these tokens; windows and others are shown by number.";
  const lines = [
    dtype === "float32" ? "Scores, rows of C and what is derived from them are the explanation's own float32 numbers." : `Scores and rows of C are the explanation's ${dtype} numbers as float32.`,
    "A score is the entry of C's row that the head reads, less what skip connections alone leave of it (Chefer et al. 2021, Eq. 13 and 14), for methods with such a row.",
    "Patches are drawn as even tiles of the picture; colours of scores end at the largest magnitude.",
    ...(blocks === null ? [] : [resolutions(blocks), ofMaps]),
  ];
  byId("limits").replaceChildren(...lines.map((line) => make("li", line)));
}

function drawBooks() {
  const { ledger } = shown.sample;
  byId("ledger-body").hidden = ledger === null;
  byId("ledger-note").textContent = ledger === null ? "This method propagates no relevance, so there are no books." : `${ledger.accounts} operations; started = reached + absorbed + lost + flowed on + residual. Largest residual of any operation: ${brief(ledger.worst)} of its Σ|R| (balanced below 1e-5). What flowed on is not lost: it is the relevance that went past what this method reads (a method over attention reads at attention maps, and skip connections carry most relevance past them); a large share is usual.`;
  if (ledger === null) return;
  const deepest = Math.max(1, ...ledger.modules.map(([path]) => path.split(".").length));
  const select = byId("depth");
  const chosen = Math.min(Number(select.value || 2), deepest);
  options(select, [...Array(deepest).keys()].map((k) => [k + 1, String(k + 1)]), chosen);
  drawLedger(ledger, chosen);
}

// A pointer on a whole map: its query and key, or null when it leaves.
function point(query, key) {
  state.key = key;
  if (query === null) return show(state.kept);
  state.query = query;
  return shown.heads.ofTokens.queries ? show(query) : show(state.here);
}

function tokenAt(event) {
  const button = event.target.closest?.("[data-token]");
  return button ? Number(button.dataset.token) : null;
}

function listen() {
  const field = byId("score-field");
  field.addEventListener("pointerover", (event) => { const i = tokenAt(event); if (i !== null && i !== state.here) show(i); });
  field.addEventListener("pointerleave", () => show(state.kept));
  field.addEventListener("focusin", (event) => { const i = tokenAt(event); if (i !== null) show(i); });
  field.addEventListener("focusout", () => show(state.kept));
  field.addEventListener("click", (event) => { const i = tokenAt(event); if (i !== null) { keep(i); shown.scores.buttons.get(i).focus({ preventScroll: true }); } });
  field.addEventListener("keydown", (event) => {
    const i = tokenAt(event);
    if (i === null || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    shown.scores.buttons.get(shown.scores.next(i, event.key)).focus();
  });
  byId("sample").addEventListener("change", (event) => {
    const { target } = sampleOf(one());
    const { label } = one();
    state.sample = Number(event.target.value);
    choose(target, label, (e) => e.label === label);
    refresh();
  });
  byId("target").addEventListener("change", ({ target: { value } }) => { choose(value, one().label, (e) => sampleOf(e).target === value); refresh(); });
  byId("method").addEventListener("change", (event) => { choose(sampleOf(one()).target, event.target.value, () => true); refresh(); });
  for (const [id, draw] of [["stream", refresh], ["block", drawHeads], ["head", drawHead]]) byId(id).addEventListener("change", (event) => { state[id] = Number(event.target.value); draw(); });
  byId("threshold").addEventListener("input", (event) => { state.threshold = Number(event.target.value) / 100; drawScores(); show(state.here); });
  byId("picture").addEventListener("change", (event) => { state.over = event.target.checked; drawScores(); show(state.here); });
  byId("words").addEventListener("change", (event) => { state.words = event.target.checked; refresh(); });
  byId("query").addEventListener("change", (event) => {
    const i = Math.max(0, Math.min(shown.heads.queries - 1, Math.round(Number(event.target.value)) || 0));
    state.query = i;
    if (shown.heads.ofTokens.queries) keep(i);
    else show(state.here);
    drawOpenTable();
  });
  byId("depth").addEventListener("change", () => drawBooks());
  byId("table-details").addEventListener("toggle", () => drawOpenTable());
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  darkness.addEventListener("change", () => { drawScores(); shown.heads?.chooseHead(state.head, shown.sample.blocks[state.block].path); show(state.here); });
}

listen();
refresh().then(() => { document.documentElement.dataset.ready = "yes"; });
