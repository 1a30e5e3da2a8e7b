const canvas = document.getElementById("heat");
if (canvas) read(canvas).then((shares) => {
  const slider = document.getElementById("least"), shown = document.getElementById("shown");
  const sizes = shares.map(Math.abs).sort((a, b) => b - a);
  const draw = () => {
    const count = Math.round(sizes.length * Number(slider.value) / 100);
    paint(canvas, shares, sizes[Math.max(0, count - 1)]);
    shown.textContent = `${slider.value} %`;
  };
  slider.addEventListener("input", draw);
  draw();
});
