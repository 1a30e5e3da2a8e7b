// Arrays inside the page: base64 of a zlib stream, inflated when first asked for.

const inflated = new Map();

async function inflate(number) {
  const text = atob(byId(`chunk-${number}`).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function numbers(number, Type) {
  if (!inflated.has(number)) inflated.set(number, inflate(number));
  return new Type(await inflated.get(number));
}

async function readStream(stream) {
  const [scores, row, identity, content, source] = await Promise.all([
    numbers(stream.scores, Float32Array), numbers(stream.row, Float32Array), numbers(stream.identity, Float32Array),
    numbers(stream.content, Uint8Array), numbers(stream.source, Int32Array),
  ]);
  const matrix = stream.matrix === null ? null : matrixReader(await numbers(stream.matrix.chunk, Float32Array), stream.matrix.rows, stream.count);
  return { ...stream, scores, row, identity, content, source, matrix };
}

function matrixReader(values, rows, keys) {
  const place = rows === null ? null : new Map(rows.map((r, i) => [r, i]));
  return (i) => {
    const at = place === null ? i : place.get(i);
    return at === undefined ? null : values.subarray(at * keys, (at + 1) * keys);
  };
}

// One kind of map of one block: `row(head, i)` is a row of numbers, or null where the page holds none; head −1 is the mean.
async function readMap(map) {
  const [whole, mean, meanSteps] = await Promise.all([
    numbers(map.values, map.wide ? Int16Array : Int8Array), numbers(map.mean, Int8Array), numbers(map.mean_steps, Float32Array),
  ]);
  const place = map.rows === null ? null : new Map(map.rows.map((r, i) => [r, i]));
  const meanPlace = map.mean_rows === null ? null : new Map(map.mean_rows.map((r, i) => [r, i]));
  const count = map.rows === null ? map.queries : map.rows.length;
  const { keys } = map;
  const one = (head, i, values) => {
    const at = place === null ? i : place.get(i);
    if (at === undefined) return null;
    const from = (head * count + at) * keys;
    for (let j = 0; j < keys; j += 1) values[j] += whole[from + j] * map.steps[head];
    return values;
  };
  const meanAt = (i) => (meanPlace === null ? i : meanPlace.get(i));
  const row = (head, i) => {
    const values = new Float32Array(keys);
    if (head >= 0) return one(head, i, values);
    const at = meanAt(i);
    if (at !== undefined) return values.map((_, j) => mean[at * keys + j] * meanSteps[at]);
    for (let h = 0; h < map.heads; h += 1) if (one(h, i, values) === null) return null; // no room for this mean: of the rounded heads
    return values.map((v) => v / map.heads);
  };
  const error = (head, i) => {
    if (head >= 0) return map.steps[head] / 2;
    return meanAt(i) === undefined ? map.steps.reduce((sum, s) => sum + s, 0) / map.heads / 2 : meanSteps[meanAt(i)] / 2;
  };
  const largest = (head) => {
    let most = 0;
    for (let i = 0; i < map.queries; i += 1) {
      const values = row(head, i);
      if (values !== null) for (const v of values) most = Math.max(most, Math.abs(v));
    }
    return most;
  };
  return { ...map, row, error, largest };
}
