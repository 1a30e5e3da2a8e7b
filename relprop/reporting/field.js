// One number per token, drawn where the tokens are: over the picture, as flowing words, or both. With `pick` the tokens are buttons. `merged`: words, not their tokens.

function tokenName(stream, i) {
  if (stream.tokens !== null) return visible(stream.tokens[i]);
  const at = stream.source[i];
  if (at < 0) return `token ${i} (the model's own)`;
  if (stream.grid === null) return `token ${i}`;
  if (stream.places) return stream.places[i];
  const [rows, columns] = stream.grid.slice(-2);
  const patch = `patch (${Math.floor(at / columns) % rows}, ${at % columns})`;
  return stream.grid.length === 2 ? patch : `${patch} of frame ${Math.floor(at / columns / rows)}`;
}

// Of each token of a word of several: the whole word at its strongest token, null at the others.
function partsOf(stream) {
  const parts = new Map();
  for (const [name, tokens] of stream.words ?? []) {
    if (tokens.length < 2) continue;
    for (const i of tokens) parts.set(i, null);
    parts.set(tokens.reduce((best, i) => (Math.abs(stream.scores[i]) > Math.abs(stream.scores[best]) ? i : best)), { name, tokens });
  }
  return parts;
}

class Field {
  constructor(place, stream, pick, merged = false) {
    this.stream = stream;
    this.parts = merged ? partsOf(stream) : new Map();
    this.words = new Map();
    this.buttons = new Map();
    this.here = null;
    place.replaceChildren();
    const flat = stream.grid === null;
    const prefix = [];
    const cells = [];
    for (let i = 0; i < stream.count; i += 1) (flat || stream.source[i] < 0 ? prefix : cells).push(i);
    if (!flat) cells.sort((a, b) => stream.source[a] - stream.source[b]); // as they are drawn, for the arrow keys
    if (prefix.length > 0) place.append(this.flow(prefix, flat ? "words" : "prefix", pick));
    if (!flat) place.append(this.patches(cells, pick));
    this.order = [...prefix, ...cells].filter((i) => this.parts.get(i) !== null);
  }

  flow(tokens, kind, pick) {
    const long = tokens.length > (pick ? 400 : 100);
    const group = { role: "group", "aria-label": kind === "words" ? "Tokens" : "Tokens of the model's own" };
    const scrolled = long ? { role: "region", "aria-label": "Tokens, scrolled", tabindex: "0" } : {};
    const list = make("div", null, { class: long ? `${kind} long` : kind, dir: "auto", ...(pick ? group : scrolled) });
    for (const i of tokens) {
      const part = this.parts.get(i);
      if (part === null) continue;
      const name = part ? visible(part.name) : this.stream.tokens !== null || this.stream.grid !== null ? tokenName(this.stream, i) : String(i);
      const look = { class: `word${this.stream.content[i] ? "" : " bare"}` };
      const word = pick ? this.button(i, name, look) : make("span", name, look);
      this.words.set(i, word);
      list.append(word);
    }
    return list;
  }

  patches(cells, pick) {
    const { grid, image, picture, source } = this.stream;
    const columns = grid[grid.length - 1];
    const rows = grid.slice(0, -1).reduce((a, b) => a * b, 1);
    const box = make("div", null, { class: "patches" });
    const [height, width] = image === null ? [rows, columns] : grid.length === 3 ? [image[0] * grid[0], image[1]] : image;
    box.style.aspectRatio = `${width} / ${height}`;
    if (picture !== null) {
      this.img = make("img", null, { alt: "" });
      this.img.src = picture;
      box.append(this.img);
    }
    this.canvas = make("canvas", null, { width: columns, height: rows, "aria-hidden": "true" });
    this.pen = this.canvas.getContext("2d");
    this.image = this.pen.createImageData(columns, rows);
    this.columns = columns;
    this.cells = cells;
    const over = make("div", null, { class: "cells", ...(pick ? { role: "group", "aria-label": "Patches" } : {}) });
    over.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    over.style.gridTemplateRows = `repeat(${rows}, minmax(0, 1fr))`;
    box.append(this.canvas, over);
    if (pick) {
      for (const i of cells) {
        const cell = this.button(i);
        cell.style.gridArea = this.area(source[i]);
        over.append(cell);
      }
    } else {
      this.outline = make("div", null, { class: "outline", hidden: "" });
      over.append(this.outline);
    }
    return box;
  }

  // Where in the lines and columns of the grid a patch is.
  area(at) {
    return `${Math.floor(at / this.columns) + 1} / ${(at % this.columns) + 1}`;
  }

  // The number of the part that is shown at token i: a word's is the sum of its tokens'.
  sumAt(i, values) {
    return (this.parts.get(i)?.tokens ?? [i]).reduce((sum, k) => sum + values[k], 0);
  }

  largest(values) {
    return this.order.reduce((most, i) => Math.max(most, Math.abs(this.sumAt(i, values))), 0);
  }

  button(i, name, look = {}) {
    const part = this.parts.get(i);
    const said = `${part ? visible(part.name) : tokenName(this.stream, i)}, score ${brief(this.sumAt(i, this.stream.scores))}`;
    const element = make("button", name, { type: "button", tabindex: "-1", "data-token": i, "aria-pressed": "false", "aria-label": said, ...look });
    this.buttons.set(i, element);
    return element;
  }

  // Values (one per token) on a scale; what is smaller than `least` is left out. `over`: on the picture.
  draw(values, scale, least, over) {
    const colours = theme();
    for (const [i, word] of this.words) {
      const value = values === null ? 0 : this.sumAt(i, values);
      const at = Math.abs(value) < least ? STEPS : level(value, scale);
      word.style.backgroundColor = colours.css[at];
      word.style.color = colours.letters[at];
    }
    if (this.canvas === undefined) return;
    const { data } = this.image;
    data.fill(0);
    const onPicture = over && this.img !== undefined;
    if (this.img !== undefined) this.img.hidden = !over;
    if (values !== null) {
      for (const i of this.cells) {
        const value = Math.abs(values[i]) < least ? 0 : values[i];
        const at = level(value, scale);
        const pixel = (onPicture ? RAMPS.light : colours).colours[at];
        data.set([...pixel, onPicture ? 0.9 * Math.abs(at - STEPS) : 255], 4 * this.stream.source[i]);
      }
    }
    this.pen.putImageData(this.image, 0, 0);
  }

  // Marks the token whose row is shown.
  mark(i) {
    i = this.leader(i);
    for (const map of [this.words, this.buttons]) {
      map.get(this.here)?.classList.remove("here");
      map.get(i)?.classList.add("here");
    }
    this.here = i;
    if (this.outline === undefined) return;
    const at = this.stream.source[i];
    this.outline.hidden = at < 0;
    if (at >= 0) this.outline.style.gridArea = this.area(at);
  }

  // The token at which token i is shown.
  leader(i) {
    if (this.parts.get(i) !== null) return i;
    return [...this.parts].find(([, part]) => part?.tokens.includes(i))[0];
  }

  // The token that an arrow key leads to from token i.
  next(i, key) {
    const at = this.order.indexOf(i);
    if (key === "Home") return this.order[0];
    if (key === "End") return this.order[this.order.length - 1];
    if (this.cells !== undefined && this.stream.source[i] >= 0 && (key === "ArrowUp" || key === "ArrowDown")) {
      const wanted = this.stream.source[i] + (key === "ArrowUp" ? -this.columns : this.columns);
      const found = this.cells.find((c) => this.stream.source[c] === wanted);
      return found ?? (key === "ArrowUp" && this.order[0] !== this.cells[0] ? this.order[0] : i);
    }
    const step = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
    return this.order[at + step] ?? i;
  }
}
