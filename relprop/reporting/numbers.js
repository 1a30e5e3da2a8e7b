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

const ARRAYS = { scores: Float32Array, row: Float32Array, identity: Float32Array, content: Uint8Array, source: Int32Array };

async function readStream(stream) {
  const read = await Promise.all(Object.entries(ARRAYS).map(async ([name, Type]) => [name, await numbers(stream[name], Type)]));
  const matrix = stream.matrix === null ? null : rowsOf(await numbers(stream.matrix.chunk, Float32Array), stream.matrix.rows, stream.count);
  return { ...stream, ...Object.fromEntries(read), matrix };
}

// Of numbers of some rows (all where `rows` is null): row i, or null.
function rowsOf(values, rows, keys) {
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
  const { steps, keys } = map;
  const size = whole.length / map.heads;
  const heads = steps.map((_, h) => rowsOf(whole.subarray(h * size, (h + 1) * size), map.rows, keys));
  const [meanRow, meanStep] = [rowsOf(mean, map.mean_rows, keys), rowsOf(meanSteps, map.mean_rows, 1)];
  const scaled = (values, step) => (values === null ? null : new Float32Array(values).map((v) => v * step));
  const row = (head, i) => {
    if (head >= 0) return scaled(heads[head](i), steps[head]);
    if (meanRow(i) !== null) return scaled(meanRow(i), meanStep(i)[0]);
    const all = heads.map((read) => read(i)); // no room for this mean: of the rounded heads
    return all[0] === null ? null : new Float32Array(keys).map((_, j) => all.reduce((sum, values, h) => sum + values[j] * steps[h], 0) / map.heads);
  };
  const error = (head, i) => {
    if (head >= 0) return steps[head] / 2;
    return (meanStep(i)?.[0] ?? steps.reduce((sum, s) => sum + s, 0) / map.heads) / 2;
  };
  const largest = (head) => {
    let most = 0;
    for (let i = 0; i < map.queries; i += 1) most = (row(head, i) ?? []).reduce((best, v) => Math.max(best, Math.abs(v)), most);
    return most;
  };
  return { ...map, row, error, largest };
}
