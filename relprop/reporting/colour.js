// The one scale of every picture (views/colours.py), for light and dark: orange above 0, blue below, 2 * STEPS + 1 colours.

const STEPS = 255;
const darkness = window.matchMedia("(prefers-color-scheme: dark)");

function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function ramp(written) {
  const colours = written.match(/.{6}/g).map((c) => [0, 2, 4].map((k) => parseInt(c.slice(k, k + 2), 16)));
  return { colours, css: colours.map(([r, g, b]) => `rgb(${r} ${g} ${b})`), letters: colours.map((c) => (luminance(c) > 0.179 ? "#000000" : "#ffffff")) };
}

const WRITTEN = JSON.parse(byId("data").textContent).colours;
const RAMPS = { light: ramp(WRITTEN.light), dark: ramp(WRITTEN.dark) };

function theme() {
  return RAMPS[darkness.matches ? "dark" : "light"];
}

// The place of a value in a ramp; `scale` is the value of the last colour.
function level(value, scale) {
  if (!(scale > 0)) return STEPS;
  return STEPS + Math.round(STEPS * Math.max(-1, Math.min(1, value / scale)));
}

// From 0, or where any number is negative from most against the target; to most for it.
function drawLegend(canvas, signed) {
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, 1);
  const first = signed ? 0 : STEPS;
  for (let x = 0; x < canvas.width; x += 1) image.data.set([...theme().colours[first + Math.round((x / (canvas.width - 1)) * (2 * STEPS - first))], 255], 4 * x);
  pen.putImageData(image, 0, 0);
  byId("legend-least").textContent = signed ? "against the target" : "0";
  byId("legend-most").textContent = `${signed ? "for the target" : "largest"}; over a picture: the more colour, the larger`;
}
