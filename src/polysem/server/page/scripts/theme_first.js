// Before anything is drawn, so that a page chosen to be dark does not flash white.
try {
  const kept = localStorage.getItem("polysem-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  /* storage is forbidden: the system's choice holds */
}
