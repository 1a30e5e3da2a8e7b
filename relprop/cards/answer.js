const total = (list) => list.reduce((sum, x) => sum + x, 0), most = (list) => Math.max(...list.map(Math.abs)) || 1;

for (const section of document.querySelectorAll("[data-answer]")) {
  const answer = data.answers[Number(section.dataset.answer)];
  const [chips, rows, words, modes] = ["said", "part", "word", "mode"].map((name) => [...section.querySelectorAll(`[data-${name}]`)]);
  const [says, why, colours, rests] = ["says", "why", "colours", "rests"].map((name) => section.querySelector(`[data-${name}]`));
  const legend = colours.textContent;
  let held = chips.length > 1 ? -1 : 0, mode = "shares";

  const shade = (element, share, strongest) => {
    element.style.setProperty("--s", `${Math.round(100 * Math.abs(share) / strongest)}%`);
    element.classList.toggle("against", share < 0);
  };

  const show = (k) => {
    const said = answer.said[k], against = said?.against && mode === "against";
    const shares = !said ? answer.whole : against ? said.against : said.shares;
    const own = answer.words + answer.maps.length, strongest = most(shares), size = total(shares.map(Math.abs)) || 1;
    const parts = [...answer.parts.map((part) => total(part.map((i) => shares[i]))), ...shares.slice(answer.words, own), total(shares.slice(own))];
    rows.forEach((row, i) => {
      const share = parts[i] / size, bar = row.querySelector(".track span");
      row.querySelector("[data-percent]").textContent = `${Math.round(100 * share)}%`;
      bar.style.width = `${100 * Math.abs(parts[i]) / most(parts)}%`;
      bar.classList.toggle("against", share < 0);
      // of more than 8 sentences the weak ones are a line each
      row.classList.toggle("small", i < answer.parts.length && answer.parts.length > 8 && Math.abs(share) < 0.02);
    });
    rows.at(-1).hidden = parts.at(-1) === 0;
    for (const word of words) shade(word, shares[Number(word.dataset.word)], strongest);
    for (const chip of chips) {
      const j = Number(chip.dataset.said);
      chip.setAttribute("aria-pressed", String(j === k));
      shade(chip, j < 0 || (said && j >= k) ? 0 : shares[own + j] ?? 0, strongest);
    }
    section.querySelectorAll("canvas").forEach((canvas, m) => {
      const cells = said ? answer.maps[m][k] : answer.wholes[m];
      paint(canvas, cells.flat().map((share) => against ? 0 : share / 100));
    });
    rests.textContent = said ? `What “${said.text}” rests on` : "What the whole answer rests on";
    says.textContent = said ? said.says : "All parts of the answer together.";
    why.hidden = !said?.against;
    modes.forEach((button) => {
      button.textContent = button.dataset.mode === "shares" ? `Why “${said?.text}”?` : `Why not “${said?.other}”?`;
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    });
    colours.textContent = against ? `Orange speaks for “${said.text}” rather than “${said.other}”, blue for “${said.other}”. By the signed method ${data.signedBy}.` : legend;
  };

  for (const chip of chips) {
    const k = Number(chip.dataset.said);
    for (const event of ["mouseenter", "focus"]) chip.addEventListener(event, () => show(k));
    for (const event of ["mouseleave", "blur"]) chip.addEventListener(event, () => show(held));
    chip.addEventListener("click", () => show(held = k));
  }
  for (const button of modes) button.addEventListener("click", () => { mode = button.dataset.mode; show(held); });
  show(held);
}
