// Before anything is painted: the theme that was chosen here, if one was.
"use strict";
try {
  const chosen = localStorage.getItem("kbackup-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's theme */ }
