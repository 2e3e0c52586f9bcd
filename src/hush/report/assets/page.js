// Opens the page: the table first, then the plots; says when all is there, or what went wrong.
(async () => {
  try {
    const look = await secretTable.open();
    await plots.drawAll(look);
    addEventListener("beforeprint", () => {
      document.querySelectorAll("section > details").forEach(details => { details.open = true; });
    });
    document.documentElement.dataset.ready = "yes";
  } catch (problem) {
    const note = Object.assign(document.createElement("p"), { className: "banner bad" });
    note.textContent = "This browser could not draw the page; a current Chromium, Firefox or Safari can. The numbers stand in the tables.";
    document.querySelector("main").prepend(note);
    document.documentElement.dataset.ready = "no";
    throw problem;
  }
})();
