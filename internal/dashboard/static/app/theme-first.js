// Before the first paint: the theme that was chosen here, if one was. Without a choice the system's is followed.
(() => {
  try {
    const theme = localStorage.getItem("tranche-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage may be forbidden: the system's theme it is */ }
})();
