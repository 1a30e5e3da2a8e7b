// One block's attention, gradient and relevance side by side: the whole map of a head, and the row of the picked token where its tokens are.

const KINDS = [["attention", "Attention A"], ["gradient", "Gradient ∇A"], ["relevance", "Relevance R"]];

class HeadMaps {
  constructor(place, stream, block, maps, onPoint) {
    this.stream = stream;
    this.ofTokens = { queries: block.query_tokens === stream.name, keys: block.key_tokens === stream.name };
    this.panels = [];
    place.replaceChildren();
    for (const [kind, title] of KINDS) {
      const panel = make("figure", make("figcaption", title));
      place.append(panel);
      if (kind in maps) this.panels.push(this.panel(panel, title, maps[kind], onPoint));
      else panel.append(make("p", "This method does not use it, so it was not computed.", { class: "note" }));
    }
    this.queries = this.panels[0].map.queries;
    this.heads = this.panels[0].map.heads;
  }

  panel(place, title, map, onPoint) {
    const canvas = make("canvas", null, { width: map.keys, height: map.queries, role: "img" });
    const mark = make("div", null, { class: "rowmark" });
    mark.style.height = `${100 / map.queries}%`;
    const readout = make("p", "", { class: "readout" });
    const rows = make("div", null, { class: "field" });
    place.append(make("div", [canvas, mark], { class: "map" }), readout, rows);
    const keys = this.ofTokens.keys ? this.stream : map.keys <= 1024 ? plainStream(map.keys) : null;
    const field = keys === null ? null : new Field(rows, keys, false);
    canvas.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect();
      const at = (part, from, size, count) => Math.min(count - 1, Math.max(0, Math.floor(((part - from) / size) * count)));
      onPoint(at(event.clientY, area.top, area.height, map.queries), at(event.clientX, area.left, area.width, map.keys));
    });
    canvas.addEventListener("pointerleave", () => onPoint(null, null));
    return { title, map, canvas, mark, readout, field, keys };
  }

  // Draws the whole maps of a head.
  chooseHead(head, path) {
    this.head = head;
    const { colours } = theme();
    for (const panel of this.panels) {
      const { map, canvas } = panel;
      panel.largest = map.largest(head);
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(map.keys, map.queries);
      for (let i = 0; i < map.queries; i += 1) {
        map.row(head, i)?.forEach((v, j) => image.data.set([...colours[level(v, panel.largest)], 255], 4 * (i * map.keys + j)));
      }
      pen.putImageData(image, 0, 0);
      canvas.setAttribute("aria-label", `${panel.title} of ${path}, ${headName(head, map.lead)}: ${map.queries} queries by ${map.keys} keys, largest magnitude ${brief(panel.largest)}. Its numbers are in the table.`);
    }
  }

  // Shows one query's rows, and the number at one key.
  show(query, key, threshold, over) {
    for (const { map, mark, readout, field, keys, largest } of this.panels) {
      const values = map.row(this.head, query);
      mark.style.top = `${(100 * query) / map.queries}%`;
      if (values === null) {
        field?.draw(null, 1, 0, over);
        readout.textContent = `Query ${query}: this row is not in the file${this.head < 0 ? "." : " for single heads; choose the mean over heads."}`;
        continue;
      }
      const most = values.reduce((best, v, j) => (Math.abs(v) > Math.abs(values[best]) ? j : best), 0);
      const scale = Math.abs(values[most]);
      field?.draw(values, scale, threshold * scale, over);
      if (keys === this.stream) field?.mark(this.ofTokens.queries ? query : null);
      const name = (j) => (keys === null ? `key ${j}` : tokenName(keys, j));
      const error = map.error(this.head, query);
      const pointed = key === null ? "" : ` Pointed at: ${brief(values[key])} (${name(key)}).`;
      const top = scale === 0 ? `Query ${query}: below what this map resolves.` : `Query ${query}: largest ${brief(values[most])} at ${name(most)}.`;
      readout.textContent = `${top}${pointed} Every number ± ${brief(error)}; map's largest ${brief(largest)}.`;
    }
  }
}

// Where several axes stand before queries and keys (windows), the last is the heads'.
function headName(head, lead) {
  if (head < 0) return lead.length > 1 ? "mean over windows and heads" : "mean over heads";
  const heads = lead[lead.length - 1];
  return lead.length > 1 ? `window ${Math.floor(head / heads)}, head ${head % heads}` : `head ${head}`;
}

// Keys that are no tokens of the input (windows, another input's tokens): shown by number.
function plainStream(count) {
  return { count, tokens: Array.from({ length: count }, (_, j) => `key ${j}`), grid: null, image: null, picture: null, source: new Int32Array(count).fill(0), content: new Uint8Array(count).fill(1) };
}
