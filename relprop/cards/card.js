const data = JSON.parse(document.getElementById("data").textContent);
const colours = Array.from({ length: 511 }, (_, k) => parseInt(data.colours.slice(6 * k, 6 * k + 6), 16));

for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", async () => {
  const said = button.textContent, source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = said; }, 2000);
});

// The shares of the strongest, in [-1, 1], that a canvas has as a picture of one byte each; 128 is 0.
async function read(canvas) {
  const map = new Image();
  map.src = canvas.dataset.map;
  await map.decode();
  [canvas.width, canvas.height] = [map.width, map.height];
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(map, 0, 0);
  const bytes = pen.getImageData(0, 0, map.width, map.height).data;
  return Array.from({ length: bytes.length / 4 }, (_, i) => (bytes[4 * i] - 128) / 127);
}

// Draws shares of the strongest, the stronger the more opaque; those weaker than `least` not at all.
function paint(canvas, shares, least = 0) {
  const pen = canvas.getContext("2d"), field = pen.createImageData(canvas.width, canvas.height);
  shares.forEach((share, i) => {
    const size = Math.min(1, Math.abs(share)), colour = colours[255 + Math.round(255 * Math.sign(share) * size)];
    const opacity = size < least ? 0 : 255 * 0.9 * size ** 0.8;
    field.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, opacity], 4 * i);
  });
  pen.putImageData(field, 0, 0);
  canvas.dataset.painted = "yes";
}
