// Light, dark, or as the system is; kept in this browser.
const KEY = "theme";
export const THEMES = ["system", "light", "dark"];

export const theme = () => {
  try { return localStorage.getItem(KEY) || "system"; } catch { return "system"; }
};

export function setTheme(name) {
  if (name === "system") localStorage.removeItem(KEY); else localStorage.setItem(KEY, name);
  applyTheme();
}

export function applyTheme() {
  const { dataset } = document.documentElement;
  if (theme() === "system") delete dataset.theme; else dataset.theme = theme();
}
