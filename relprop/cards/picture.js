const canvas = document.getElementById("heat");
if (canvas) {
  const least = document.getElementById("least"), shown = document.getElementById("shown");
  const image = new Image();
  image.addEventListener("load", () => {
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.drawImage(image, 0, 0);
    const levels = pen.getImageData(0, 0, canvas.width, canvas.height).data.filter((_, i) => i % 4 === 0);
    const sizes = Array.from(levels, v => data.signed ? Math.abs(v - 128) / 127 : v / 255);
    const sorted = [...sizes].sort((a, b) => b - a);
    const colour = k => [0, 2, 4].map(c => parseInt(data.colours.slice(6 * k + c, 6 * k + c + 2), 16));
    const paint = () => {
      const percent = Number(least.value);
      const limit = percent === 100 ? -1 : sorted[Math.max(0, Math.round(sorted.length * percent / 100) - 1)];
      const pixels = pen.createImageData(canvas.width, canvas.height);
      sizes.forEach((size, i) => {
        const share = data.signed ? (levels[i] - 128) / 127 : size;
        pixels.data.set(colour(255 + Math.round(255 * Math.max(-1, Math.min(1, share)))), 4 * i);
        pixels.data[4 * i + 3] = size < limit ? 0 : Math.round(230 * size ** 0.8);
      });
      pen.putImageData(pixels, 0, 0);
      shown.textContent = `${percent} %`;
    };
    least.addEventListener("input", paint);
    paint();
  });
  image.src = data.map;
}
