// Orange above 0, blue below: lightness and colourfulness are linear in |value| in OKLab (Ottosson 2020), so that equal steps look equal, and no pair of
// colours differs by red against green alone.

const STEPS = 255;
const HUE = { above: 55, below: 255 };
const THEMES = { light: { zero: 0.97, full: 0.52 }, dark: { zero: 0.22, full: 0.8 } };
const darkness = window.matchMedia("(prefers-color-scheme: dark)");

function srgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => Math.round(255 * Math.min(1, Math.max(0, x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055))));
}

function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function ramp(theme) {
  const { zero, full } = THEMES[theme];
  const colours = [];
  for (let i = -STEPS; i <= STEPS; i += 1) {
    const size = Math.abs(i) / STEPS;
    colours.push(srgb(zero + (full - zero) * size, 0.13 * size, i < 0 ? HUE.below : HUE.above));
  }
  return { colours, css: colours.map(([r, g, b]) => `rgb(${r} ${g} ${b})`), letters: colours.map((c) => (luminance(c) > 0.179 ? "#000000" : "#ffffff")) };
}

const RAMPS = { light: ramp("light"), dark: ramp("dark") };
const OVER = { above: srgb(0.74, 0.16, 60), below: srgb(0.7, 0.15, 245) };

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
