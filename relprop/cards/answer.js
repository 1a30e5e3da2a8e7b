for (const section of document.querySelectorAll("[data-answer]")) {
  const answer = data.answers[Number(section.dataset.answer)];
  const chips = [...section.querySelectorAll("[data-said]")];
  const rows = [...section.querySelectorAll("[data-part]")];
  const words = [...section.querySelectorAll("[data-word]")];
  const modes = [...section.querySelectorAll("[data-mode]")];
  const says = section.querySelector("[data-says]"), why = section.querySelector("[data-why]");
  const colours = section.querySelector("[data-colours]"), legend = colours.textContent;
  let held = -1, mode = "shares";
  const size = list => list.reduce((sum, x) => sum + Math.abs(x), 0) || 1;
  const paint = k => {
    const said = k < 0 ? null : answer.said[k];
    const shares = !said ? answer.whole : (mode === "against" && said.against) || said.shares;
    const strongest = Math.max(...shares.map(Math.abs)) || 1, total = size(shares);
    const pictures = shares.slice(answer.words, answer.words + answer.maps.length);
    const own = shares.slice(answer.words + answer.maps.length).reduce((a, b) => a + b, 0);
    const parts = [...answer.parts.map(part => part.reduce((sum, i) => sum + shares[i], 0)), ...pictures, own];
    const most = Math.max(...parts.map(Math.abs)) || 1;
    rows.forEach((row, i) => {
      row.querySelector("[data-percent]").textContent = `${Math.round(100 * parts[i] / total)}%`;
      const bar = row.querySelector(".track span");
      bar.style.width = `${100 * Math.abs(parts[i]) / most}%`;
      bar.classList.toggle("against", parts[i] < 0);
      row.classList.toggle("small", i < answer.parts.length && answer.parts.length > 8 && Math.abs(parts[i]) / total < 0.02);
      if (i === rows.length - 1) row.hidden = parts[i] === 0;
    });
    for (const word of words) {
      const share = shares[Number(word.dataset.word)];
      word.style.setProperty("--s", `${Math.round(100 * Math.abs(share) / strongest)}%`);
      word.classList.toggle("against", share < 0);
    }
    chips.forEach(chip => {
      const j = Number(chip.dataset.said);
      chip.setAttribute("aria-pressed", String(j === k));
      const share = j < 0 || (said && j >= k) ? 0 : shares[answer.words + answer.maps.length + j] ?? 0;
      chip.style.setProperty("--s", `${Math.round(100 * Math.abs(share) / strongest)}%`);
    });
    section.querySelectorAll("canvas").forEach((canvas, m) => {
      const pen = canvas.getContext("2d"), maps = answer.maps[m];
      const cells = said ? maps[k] : maps[0].map((_, i) => maps.reduce((sum, map) => sum + map[i], 0) / maps.length);
      pen.clearRect(0, 0, canvas.width, canvas.height);
      if (mode === "against" && said) return;
      cells.forEach((share, i) => {
        pen.fillStyle = share < 0 ? "#2a6cc4" : "#e0611a";
        pen.globalAlpha = data.opacity[Math.round(Math.abs(share))];
        pen.fillRect(i % canvas.width, Math.floor(i / canvas.width), 1, 1);
      });
    });
    says.textContent = said ? said.says : "All parts of the answer together.";
    why.hidden = !(said && said.against);
    colours.textContent = legend;
    if (said && said.against) {
      modes[0].textContent = `Why “${said.text}”?`;
      modes[1].textContent = `Why not “${said.other}”?`;
      modes.forEach(b => b.setAttribute("aria-pressed", String(b.dataset.mode === mode)));
      if (mode === "against") colours.textContent = `Orange speaks for “${said.text}” rather than “${said.other}”, blue for “${said.other}”. By the signed method ${data.signedBy}.`;
    }
  };
  for (const chip of chips) {
    const k = Number(chip.dataset.said);
    chip.addEventListener("mouseenter", () => paint(k));
    chip.addEventListener("mouseleave", () => paint(held));
    chip.addEventListener("focus", () => paint(k));
    chip.addEventListener("blur", () => paint(held));
    chip.addEventListener("click", () => { held = k; paint(k); });
  }
  for (const button of modes) {
    button.addEventListener("click", () => { mode = button.dataset.mode; paint(held); });
  }
  paint(-1);
}
